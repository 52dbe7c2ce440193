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
// set). Items are handed out in order; thread < threads numbers the worker, for its scratch memory: who has
// some asks num_threads() once and passes that on, since another thread may set it meanwhile. Which
// thread does an item must not matter. Returns when all are done. Called from inside another parallel region,
// it runs serially. The body must not throw.
void parallel_for(int64_t items, int threads, const Body& body);

// How many threads parallel_for uses: what was set, else what the OpenMP runtime says for the calling thread,
// else ARMLLM_NUM_THREADS or OMP_NUM_THREADS, else the CPUs this process may run on.
int num_threads();
void set_num_threads(int threads);  // 0: back to the default

// Takes the pool even where there is an OpenMP runtime, or not any more.
void use_own_threads(bool own);

// "libgomp" and where it was found, or "pool".
const char* thread_backend();

}  // namespace armllm
