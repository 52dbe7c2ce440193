#include "openmp.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

#include <atomic>
#include <string>

namespace armllm {

namespace {

int find_libgomp(dl_phdr_info* info, size_t, void* result) {
  if (info->dlpi_name == nullptr) return 0;
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* base = slash == nullptr ? info->dlpi_name : slash + 1;
  if (strncmp(base, "libgomp", 7) != 0) return 0;
  *static_cast<std::string*>(result) = info->dlpi_name;
  return 1;
}

// How many objects were ever loaded: tells whether another look is worth while.
int read_adds(dl_phdr_info* info, size_t size, void* result) {
  if (size >= offsetof(dl_phdr_info, dlpi_adds) + sizeof info->dlpi_adds) {
    *static_cast<unsigned long long*>(result) = info->dlpi_adds;
  }
  return 1;
}

template <class F>
bool resolve(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

const OpenMp* openmp() {
  static std::atomic<const OpenMp*> found{nullptr};
  static std::atomic<unsigned long long> seen{~0ULL};
  const OpenMp* known = found.load(std::memory_order_acquire);
  if (known != nullptr) return known;

  unsigned long long adds = 0;
  dl_iterate_phdr(read_adds, &adds);
  if (adds == seen.load(std::memory_order_relaxed)) return nullptr;

  std::string path;
  dl_iterate_phdr(find_libgomp, &path);
  if (path.empty()) {
    seen = adds;
    return nullptr;
  }
  OpenMp result;
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  if (!resolve(library, "GOMP_parallel", result.parallel) ||
      !resolve(library, "omp_get_max_threads", result.max_threads) ||
      !resolve(library, "omp_get_thread_num", result.thread_num) ||
      !resolve(library, "omp_get_num_threads", result.num_threads) ||
      !resolve(library, "omp_in_parallel", result.in_parallel)) {
    return nullptr;
  }
  resolve(library, "omp_pause_resource_all", result.pause);
  found.store(new OpenMp(result), std::memory_order_release);  // lives as long as the process
  return found.load();
}

}  // namespace armllm
