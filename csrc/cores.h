// On which cores the threads of a team are, and how one leaves a core that another of them has: on a busy
// machine two may wake on the same one, and the system takes long to part them.

#pragma once

#include <sched.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>

namespace armllm {

class Cores {
 public:
  // Notes where the calling thread is. Only in some regions: a system without rseq takes 100 ns to say it.
  void note(int thread, uint64_t region) {
    if (region % 16 != 0 || thread >= kMost) return;
    const int core = sched_getcpu() + 1;
    if (of_[thread].load(std::memory_order_relaxed) != core)
      of_[thread].store(core, std::memory_order_relaxed);
  }
  // Returns whether the calling thread has gone to a core that no other has. It may run where it might
  // before.
  bool leave_shared(int thread, int team) const {
    cpu_set_t allowed, others, rest;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return false;
    CPU_ZERO(&others);
    for (int t = 0; t < std::min(team, kMost); ++t) {
      const int core = of_[t].load(std::memory_order_relaxed) - 1;
      if (t != thread && core >= 0) CPU_SET(static_cast<size_t>(core), &others);
    }
    const int own = sched_getcpu();
    if (own < 0 || !CPU_ISSET(static_cast<size_t>(own), &others)) return false;
    CPU_AND(&others, &others, &allowed);
    CPU_XOR(&rest, &allowed, &others);
    if (CPU_COUNT(&rest) == 0 || sched_setaffinity(0, sizeof rest, &rest) != 0) return false;
    sched_setaffinity(0, sizeof allowed, &allowed);
    return true;
  }

 private:
  static constexpr int kMost = 512;
  std::atomic<int> of_[kMost] = {};  // 0: unknown; else the number and 1
};

}  // namespace armllm
