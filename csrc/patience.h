// How a thread waits for another one: for a while awake, as long as the machine leaves it a core.

#pragma once

#include <stdint.h>
#include <time.h>

#include <algorithm>

namespace armllm {

inline int64_t nanoseconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// How a thread waits: for 20 microseconds it looks again and again, which is what a barrier within an op
// takes. For 300, what lies between the ops of a step, it does so only while the machine leaves it
// its core: where others want it, a spinning thread takes it from the one that it waits for.
class Patience {
 public:
  // Returns whether `done` came true in that time.
  template <class Done>
  bool spin(const Done& done) {
    const int64_t start = nanoseconds(CLOCK_MONOTONIC);
    int64_t limit = kShort;
    while (!spin_until(done, start + limit)) {
      if (limit == kLong || !has_core(nanoseconds(CLOCK_MONOTONIC))) return false;
      limit = kLong;
    }
    return true;
  }
  // The thread slept, of its own will.
  void slept(int64_t since) { asleep_ += nanoseconds(CLOCK_MONOTONIC) - since; }
  // Whether others lately used the thread's core for so long that a team of `threads` is faster without it.
  // All wait while it has no core, but it does one part of their work: two threads lose more by going on
  // alone than eight by going on with seven.
  bool is_crowded(int threads) {
    look(nanoseconds(CLOCK_MONOTONIC));
    return lost_lately_ * std::min(2 * threads, kParts) > awake_lately_;
  }

  // Spins for a while, and returns whether a team of `threads` would have been slower with this thread.
  bool would_be_crowded(int threads) {
    asleep_ = awake_lately_ = lost_lately_ = 0;
    since_ = nanoseconds(CLOCK_MONOTONIC);
    used_ = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    spin_until([] { return false; }, since_ + kTrial);
    return is_crowded(threads);
  }

 private:
  static constexpr int64_t kShort = 20000, kLong = 300000, kWindow = 5000000, kTrial = 10000000;

  template <class Done>
  static bool spin_until(const Done& done, int64_t until) {
    for (;;) {
      for (int i = 0; i < 64; ++i) {
        if (done()) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        __asm__ volatile("yield");
#endif
      }
      if (nanoseconds(CLOCK_MONOTONIC) >= until) return false;
    }
  }

  // Whether the thread had its core whenever it wanted it: for all but an eighth of the last window's time.
  bool has_core(int64_t now) {
    look(now);
    return has_core_;
  }

  // Closes the window, when it is over.
  void look(int64_t now) {
    if (now - since_ < kWindow) return;
    const int64_t used = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    if (since_ != 0) {
      const int64_t awake = now - since_ - asleep_, lost = awake - (used - used_);
      has_core_ = lost <= awake / kParts;
      lost_lately_ += lost - lost_lately_ / kLately;
      awake_lately_ += awake - awake_lately_ / kLately;
    }
    since_ = now;
    used_ = used;
    asleep_ = 0;
  }

  static constexpr int kParts = 8, kLately = 32;
  int64_t since_ = 0, used_ = 0, asleep_ = 0;
  int64_t awake_lately_ = 0, lost_lately_ = 0;  // of some windows, the older the less
  bool has_core_ = true;
};

}  // namespace armllm
