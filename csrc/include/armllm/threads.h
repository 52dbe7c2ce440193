// Threads for the drivers: the OpenMP team that torch has already loaded, or else a pool of our own, which
// also serves a process whose products are all ours (two teams on the same cores would wait for each other).

#pragma once

#include <stdint.h>

namespace armllm {

// What parallel_for calls: any function of (item, thread) that outlives the call. Unlike a std::function it
// needs no memory.
class Body {
 public:
  template <class F>
  Body(const F& function)  // NOLINT(google-explicit-constructor): lambdas are passed
      : function_(&function),
        call_([](const void* f, int64_t item, int thread) { (*static_cast<const F*>(f))(item, thread); }) {}
  void operator()(int64_t item, int thread) const { call_(function_, item, thread); }

 private:
  const void* function_;
  void (*call_)(const void* function, int64_t item, int thread);
};

// Calls body(item, thread) once for every item in [0, items), on at most `threads` threads (0: the number
// set). thread < threads numbers the worker, for its scratch memory: who has some asks num_threads() once and
// passes that on, since another thread may set it meanwhile. Which thread does an item must not matter.
// Returns when all are done. Called from inside another parallel region, it runs serially. The body must not
// throw.
void parallel_for(int64_t items, int threads, const Body& body);

// The items of one stage begin when all of the stages before are done.
struct Stage {
  int64_t items;
  Body body;
};
constexpr int kMostStages = 4;
// The same for up to kMostStages stages in one region: threads meet between them, but none is woken or
// awaited.
void parallel_stages(const Stage* stages, int count, int threads);

// What parallel regions cost the threads of this process, while it is counted.
struct ThreadCounts {
  int64_t regions;   // of more than one thread
  int64_t meetings;  // between stages
  int64_t updates;   // read-modify-writes of counters that threads share
};
void count_threads(bool on);  // from 0
ThreadCounts thread_counts();

// How many threads parallel_for uses: what was set, else what the OpenMP runtime says for the calling thread,
// else ARMLLM_NUM_THREADS or OMP_NUM_THREADS, else the CPUs this process may run on.
int num_threads();
void set_num_threads(int threads);  // 0: back to the default

// Takes the pool even where there is an OpenMP runtime, or not any more.
void use_own_threads(bool own);

// "libgomp" or "pool".
const char* thread_backend();

}  // namespace armllm
