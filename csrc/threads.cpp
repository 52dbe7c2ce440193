#include "armllm/threads.h"

#include <dlfcn.h>
#include <link.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace armllm {

namespace {

// libgomp's own entry points; compilers call GOMP_parallel for `#pragma omp parallel`.
struct OpenMp {
  void (*parallel)(void (*function)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*max_threads)() = nullptr;
  int (*thread_num)() = nullptr;
  int (*in_parallel)() = nullptr;
  std::string path;
};

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

// The process's libgomp if there is one, whoever loaded it. It is never loaded from here: a second OpenMP
// runtime beside torch's would have a second team on the same cores.
const OpenMp* openmp() {
  static std::mutex mutex;
  static std::atomic<const OpenMp*> found{nullptr};
  static std::atomic<unsigned long long> seen{~0ULL};
  const OpenMp* known = found.load(std::memory_order_acquire);
  if (known != nullptr) return known;

  unsigned long long adds = 0;
  dl_iterate_phdr(read_adds, &adds);
  if (adds == seen.load(std::memory_order_relaxed)) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (found.load() != nullptr) return found.load();
  seen = adds;

  OpenMp result;
  dl_iterate_phdr(find_libgomp, &result.path);
  if (result.path.empty()) return nullptr;
  void* library = dlopen(result.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  if (!resolve(library, "GOMP_parallel", result.parallel) ||
      !resolve(library, "omp_get_max_threads", result.max_threads) ||
      !resolve(library, "omp_get_thread_num", result.thread_num) ||
      !resolve(library, "omp_in_parallel", result.in_parallel)) {
    return nullptr;
  }
  found.store(new OpenMp(result), std::memory_order_release);  // lives as long as the process
  return found.load();
}

int positive(const char* variable) {
  const char* text = getenv(variable);
  if (text == nullptr) return 0;
  char* end = nullptr;
  const long value = strtol(text, &end, 10);
  return end != text && value > 0 && value <= 4096 ? static_cast<int>(value) : 0;
}

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? static_cast<int>(online) : 1;
}

thread_local bool inside_region = false;

// One region: items are taken from a counter, so that a slow thread takes fewer.
struct Region {
  const std::function<void(int64_t, int)>* body;
  int64_t items;
  std::atomic<int64_t> next{0};

  void work(int thread) {
    inside_region = true;
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < items;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      (*body)(i, thread);
    }
    inside_region = false;
  }
};

// Workers that sleep between regions. One region at a time; who finds the pool busy works alone.
class Pool {
 public:
  void run(Region& region, int threads) {
    const std::unique_lock<std::mutex> busy(use_, std::try_to_lock);
    if (!busy.owns_lock()) {
      region.work(0);
      return;
    }
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const int helpers = grow(threads - 1);
      region_ = &region;
      helpers_ = helpers;
      running_ = helpers;
      ++generation_;
    }
    wake_.notify_all();
    region.work(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    region_ = nullptr;
  }

 private:
  // Returns how many of the helpers wanted there are: fewer when the system has no more threads to give.
  int grow(int wanted) {
    while (static_cast<int>(workers_.size()) < wanted) {
      const int number = static_cast<int>(workers_.size()) + 1;
      try {
        workers_.emplace_back([this, number] { loop(number); });
      } catch (const std::system_error&) {
        return number - 1;
      }
    }
    return wanted;
  }

  // A worker is born under the lock, for a region that it takes part in: that region is its first news.
  void loop(int number) {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (number > helpers_) continue;
      Region* region = region_;
      lock.unlock();
      region->work(number);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex use_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  Region* region_ = nullptr;
  int helpers_ = 0, running_ = 0;
  uint64_t generation_ = 0;
};

// A fork leaves the child without the workers, so each process has its own pool. Pools are never destroyed:
// their threads may still be waiting when the process ends.
Pool& pool() {
  static std::mutex mutex;
  static Pool* current = nullptr;
  static pid_t owner = 0;
  const std::lock_guard<std::mutex> lock(mutex);
  if (current == nullptr || owner != getpid()) {
    current = new Pool;
    owner = getpid();
  }
  return *current;
}

std::atomic<int> requested{0};

}  // namespace

void set_num_threads(int threads) { requested = threads < 0 ? 0 : threads; }

int num_threads() {
  const int wanted = requested;
  if (wanted > 0) return wanted;
  if (const OpenMp* omp = openmp(); omp != nullptr) return omp->max_threads();
  static const int fallback = [] {
    if (const int n = positive("ARMLLM_NUM_THREADS"); n > 0) return n;
    if (const int n = positive("OMP_NUM_THREADS"); n > 0) return n;
    return available_cpus();
  }();
  return fallback;
}

const char* thread_backend() { return openmp() != nullptr ? "libgomp" : "pool"; }

void parallel_for(int64_t items, int threads, const std::function<void(int64_t, int)>& body) {
  if (items <= 0) return;
  int64_t team = threads > 0 ? threads : num_threads();
  if (items < team) team = items;
  Region region{&body, items};
  const OpenMp* omp = openmp();
  if (team == 1 || inside_region || (omp != nullptr && omp->in_parallel() != 0)) {
    const bool nested = inside_region;
    region.work(0);
    inside_region = nested;
    return;
  }
  if (omp == nullptr) {
    pool().run(region, static_cast<int>(team));
    return;
  }
  struct Call {
    Region* region;
    const OpenMp* omp;
  } call{&region, omp};
  omp->parallel(
      [](void* data) {
        const Call& c = *static_cast<Call*>(data);
        c.region->work(c.omp->thread_num());
      },
      &call, static_cast<unsigned>(team), 0);
}

}  // namespace armllm
