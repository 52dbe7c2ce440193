// Counters that many threads add to.

#pragma once

#include <stddef.h>
#include <stdint.h>

namespace armllm {

// What one core writes and another reads lies this far apart. Lines have 64 bytes on Neoverse cores, fetched
// in pairs by some, and 128 in the last caches of others.
constexpr size_t kLine = 128;

// A counter that lies alone on its line. Armv8.0's LDXR and STXR take the line from the other cores and may
// have to try again; LSE's LDADD is one transaction, which the interconnect may carry out beside the last
// cache. csrc/atomics.cpp takes it where the CPU has it.
class alignas(kLine) Counter {
 public:
  Counter() {}  // NOLINT: reset first; a region has many, of which it uses few
  int64_t load() const { return __atomic_load_n(&value_, __ATOMIC_RELAXED); }
  // Before others know of it.
  void reset() { __atomic_store_n(&value_, 0, __ATOMIC_RELAXED); }
  // Returns the value before. Relaxed: it hands out numbers, and orders nothing.
  int64_t add(int64_t n);
  // What the thread wrote before is seen by who loads this and then has an acquire fence.
  void add_release(int64_t n);

 private:
  int64_t value_;
};

// Whether LSE is used.
bool has_lse();

}  // namespace armllm
