#include "armllm/threads.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
  static std::atomic<const OpenMp*> found{nullptr};
  static std::atomic<unsigned long long> seen{~0ULL};
  const OpenMp* known = found.load(std::memory_order_acquire);
  if (known != nullptr) return known;

  unsigned long long adds = 0;
  dl_iterate_phdr(read_adds, &adds);
  if (adds == seen.load(std::memory_order_relaxed)) return nullptr;

  OpenMp result;
  dl_iterate_phdr(find_libgomp, &result.path);
  if (result.path.empty()) {
    seen = adds;
    return nullptr;
  }
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
  const Body* body;
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

int64_t nanoseconds(clockid_t clock) {
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

 private:
  static constexpr int64_t kShort = 20000, kLong = 300000, kWindow = 5000000;

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
    const int64_t awake = now - since_ - asleep_;
    if (now - since_ < kWindow) return has_core_;
    const int64_t used = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
    if (since_ != 0) has_core_ = awake - (used - used_) <= awake / 8;
    since_ = now;
    used_ = used;
    asleep_ = 0;
    return has_core_;
  }

  int64_t since_ = 0, used_ = 0, asleep_ = 0;
  bool has_core_ = true;
};

thread_local Patience patience;

// Workers that wait for regions. One region at a time; who finds the pool busy works alone.
class Pool {
 public:
  void run(Region& region, int threads) {
    const std::unique_lock<std::mutex> busy(use_, std::try_to_lock);
    if (!busy.owns_lock()) {
      region.work(0);
      return;
    }
    const int helpers = grow(threads - 1);
    region_ = &region;
    running_ = helpers;
    news_ = (news_ / kNumbers + 1) * kNumbers + static_cast<uint64_t>(helpers);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeping_ != 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    region.work(0);
    const auto is_done = [this] { return running_ == 0; };
    if (patience.spin(is_done)) return;
    const int64_t since = nanoseconds(CLOCK_MONOTONIC);
    std::unique_lock<std::mutex> lock(mutex_);
    waiting_ = true;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    done_.wait(lock, is_done);
    waiting_ = false;
    patience.slept(since);
  }

 private:
  // News are the number of regions so far, and how many helpers the last one has.
  static constexpr uint64_t kNumbers = 1 << 16;

  // Returns how many of the helpers wanted there are: fewer when the system has no more threads to give.
  int grow(int wanted) {
    while (static_cast<int>(workers_.size()) < wanted) {
      const int number = static_cast<int>(workers_.size()) + 1;
      try {
        workers_.emplace_back([this, number, seen = news_.load()] { loop(number, seen); });
      } catch (const std::system_error&) {
        return number - 1;
      }
    }
    return wanted;
  }

  void loop(int number, uint64_t seen) {
    for (;;) {
      const auto is_news = [&] { return news_ != seen; };
      if (!patience.spin(is_news)) {
        const int64_t since = nanoseconds(CLOCK_MONOTONIC);
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleeping_;
        wake_.wait(lock, is_news);
        --sleeping_;
        patience.slept(since);
      }
      seen = news_;
      // A helper's region waits for it; others may be behind already.
      if (static_cast<uint64_t>(number) > seen % kNumbers) continue;
      region_.load()->work(number);
      if (--running_ == 0 && waiting_) {
        const std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
    }
  }

  std::mutex use_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  // All in one order, so that who goes to sleep has seen the news or is seen asleep; the fences above are for
  // QEMU on x86-64, where LDAR may pass the STLR before it.
  std::atomic<Region*> region_{nullptr};
  std::atomic<uint64_t> news_{0};
  std::atomic<int> running_{0}, sleeping_{0};
  std::atomic<bool> waiting_{false};
};

std::atomic<int> requested{0};
std::atomic<bool> own_threads{false};

// A fork leaves the child without the threads of its parent, whose team libgomp would wait for: so a child
// has a pool of its own, whatever its parent had. Pools are never destroyed: their threads may still be
// waiting when the process ends.
std::atomic<Pool*> current_pool{nullptr};
std::atomic<bool> is_forked{false};
const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  current_pool = nullptr;
  is_forked = true;
});

Pool& pool() {
  Pool* known = current_pool;
  if (known == nullptr) {
    Pool* const created = new Pool;
    if (current_pool.compare_exchange_strong(known, created)) return *created;
    delete created;
  }
  return *known;
}

bool uses_own_threads() { return own_threads || is_forked || openmp() == nullptr; }

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

void use_own_threads(bool own) { own_threads = own; }

const char* thread_backend() { return uses_own_threads() ? "pool" : "libgomp"; }

void parallel_for(int64_t items, int threads, const Body& body) {
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
  if (uses_own_threads()) {
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
