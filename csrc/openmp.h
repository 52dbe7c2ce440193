// The OpenMP runtime of the process.

#pragma once

namespace armllm {

// libgomp's own entry points; compilers call GOMP_parallel for `#pragma omp parallel`.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
  int (*thread_num)() = nullptr;
  int (*num_threads)() = nullptr;
  int (*in_parallel)() = nullptr;
  int (*pause)(int kind) = nullptr;  // since OpenMP 5
};

// The process's libgomp if there is one, whoever loaded it. It is never loaded from here: a second OpenMP
// runtime beside torch's would have a second team on the same cores.
const OpenMp* openmp();

}  // namespace armllm
