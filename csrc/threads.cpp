#include "armllm/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "atomics.h"
#include "cores.h"
#include "openmp.h"
#include "patience.h"
#include "ranges.h"

namespace armllm {

namespace {

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

thread_local Patience patience;

// What is counted while somebody asks for it.
std::atomic<bool> is_counting{false};
std::atomic<int64_t> regions_counted{0}, meetings_counted{0}, updates_counted{0};

// Threads take their items from the counter of their group, which at most so many share, or a sixteenth of
// all: an update takes the line from the thread that had it last.
constexpr int kGroupThreads = 8, kMostGroups = 16;

// What thread 0 asks about the others, where they may be late: other programs may have their cores.
class Latecomers {
 public:
  // Returns whether `thread` has not begun with the region. Then it never will.
  virtual bool exclude(int thread) = 0;

 protected:
  ~Latecomers() = default;
};

// One region. Each stage's items are cut into one run for each group, and a run's first items belong to the
// threads of the group by their numbers. The rest are taken from a counter, so that a slow thread takes
// fewer; a group that has none left takes those of the next ones. The same thread so mostly has the same
// items, whose weights are in its cache or on its node. Thread 0 excludes those that have not begun when
// nothing else is left to do, and computes their first items.
class Region {
 public:
  Region(const Stage* stages, int count, int64_t team) : stages_(stages), count_(count) {
    if (team == 1) return;
    const int groups = Share(0, static_cast<int>(team)).groups;
    for (int s = 0; s < count; ++s) {
      for (int g = 0; g < groups; ++g) {
        next_[s][g].reset();
        if (s + 1 < count) done_[s][g].reset();
      }
    }
  }

  // What one of `team` threads does; all of them call it, but those whom thread 0 excludes.
  void work(int thread, int team, Latecomers* latecomers = nullptr) {
    const bool nested = inside_region;
    inside_region = true;
    if (team == 1) {
      for (int s = 0; s < count_; ++s) {
        for (int64_t i = 0; i < stages_[s].items; ++i) stages_[s].body(i, 0);
      }
    } else {
      Share share(thread, team);
      share.latecomers = latecomers;
      for (int s = 0; s < count_; ++s) {
        run(s, share);
        if (s + 1 < count_) meet(s, share);
      }
      if (is_counting.load(std::memory_order_relaxed)) updates_counted += share.updates;
    }
    inside_region = nested;
  }

 private:
  struct Share {
    Share(int number, int of)
        : thread(number),
          team(of),
          each(std::max(kGroupThreads, (of + kMostGroups - 1) / kMostGroups)),
          groups((of + each - 1) / each),
          group(number / each) {}
    int members(int g) const { return std::min(each, team - g * each); }
    int thread, team, each, groups, group;
    int64_t updates = 0;
    Latecomers* latecomers = nullptr;
    int looked_at = 1;          // the threads before have been asked about
    std::vector<int> excluded;  // of them
  };

  // Where the items of a group begin and end. In proportion to threads, not to groups: the last may be small.
  struct Run {
    Run(int64_t items, const Share& share, int g)
        : first(ceil_div(items * g * share.each, share.team)),
          end(ceil_div(items * (g * share.each + share.members(g)), share.team)) {}
    int64_t first, end;
  };

  // Computes the first item of `owner`, if it has one; returns how many that were.
  int64_t run_first(const Stage& stage, const Share& share, int owner) const {
    const int g = owner / share.each;
    const Run run(stage.items, share, g);
    const int64_t own = run.first + owner - g * share.each;
    if (own >= run.end) return 0;
    stage.body(own, share.thread);
    return 1;
  }

  void run(int s, Share& share) {
    const Stage& stage = stages_[s];
    int64_t done = run_first(stage, share, share.thread);
    for (const int owner : share.excluded) done += run_first(stage, share, owner);
    for (int step = 0; step < share.groups; ++step) {
      const int g = (share.group + step) % share.groups;
      const Run run(stage.items, share, g);
      const int64_t reserved = run.first + share.members(g);
      Counter& next = next_[s][g];
      // An addition would take the line from those who still read it.
      while (reserved + next.load() < run.end) {
        ++share.updates;
        const int64_t i = reserved + next.add(1);
        if (i >= run.end) break;
        stage.body(i, share.thread);
        ++done;
      }
    }
    if (share.latecomers != nullptr) {
      for (; share.looked_at < share.team; ++share.looked_at) {
        if (!share.latecomers->exclude(share.looked_at)) continue;
        share.excluded.push_back(share.looked_at);
        done += run_first(stage, share, share.looked_at);
      }
    }
    if (done > 0 && s + 1 < count_) {
      ++share.updates;
      done_[s][share.group].add_release(done);
    }
  }

  // Waits for the items of a stage that others have; acquires what they wrote.
  void meet(int s, const Share& share) {
    const auto is_done = [&] {
      int64_t sum = 0;
      for (int g = 0; g < share.groups; ++g) sum += done_[s][g].load();  // all lines at a time, none acquired
      if (sum < stages_[s].items) return false;
      std::atomic_thread_fence(std::memory_order_acquire);
      return true;
    };
    while (!patience.spin(is_done)) {
      // Who has the items may want this core.
      const int64_t since = nanoseconds(CLOCK_MONOTONIC);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      patience.slept(since);
    }
  }

  const Stage* stages_;
  int count_;
  Counter next_[kMostStages][kMostGroups], done_[kMostStages - 1][kMostGroups];
};

// Workers that wait for regions. One region at a time; who finds the pool busy works alone.
class Pool final : private Latecomers {
 public:
  void run(Region& region, int threads) {
    const std::unique_lock<std::mutex> busy(use_, std::try_to_lock);
    if (!busy.owns_lock()) {
      region.work(0, 1);
      return;
    }
    const int helpers = grow(threads - 1);
    const uint64_t number = news_.number.load(std::memory_order_relaxed) / kNumbers + 1;
    const uint64_t now = number * kNumbers + static_cast<uint64_t>(helpers);
    news_.region = &region;
    cores_.note(0, number);
    // Release: who acquires the number finds the region, and what its bodies will read.
    news_.number.store(now, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleep_.sleeping.load(std::memory_order_relaxed) != 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      wake_.notify_all();
    }
    region.work(0, helpers + 1, this);
    // Acquires what each helper has written, once for all: the loads don't wait for one another.
    int finished = 0;
    const auto is_done = [&] {
      while (finished < helpers && has_finished(*workers_[static_cast<size_t>(finished)], now)) ++finished;
      if (finished < helpers) return false;
      std::atomic_thread_fence(std::memory_order_acquire);
      return true;
    };
    if (patience.spin(is_done)) return;
    const int64_t since = nanoseconds(CLOCK_MONOTONIC);
    std::unique_lock<std::mutex> lock(mutex_);
    sleep_.waiting.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    done_.wait(lock, is_done);
    sleep_.waiting.store(false, std::memory_order_relaxed);
    patience.slept(since);
  }

 private:
  // News are the number of regions so far, and how many helpers the last one has.
  static constexpr uint64_t kNumbers = 1 << 16;

  // A helper says on a line of its own that it has begun, and that it has finished: a counter of all of them
  // would go from core to core.
  struct alignas(kLine) Worker {
    std::atomic<uint64_t> begun{0};     // the news that it works for, or that it was excluded from
    std::atomic<uint64_t> finished{0};  // the news that it has worked for, or that it was excluded from
    std::thread thread;

    // Whether this call is the one that decides about these news.
    bool claim(uint64_t news) {
      uint64_t before = begun.load(std::memory_order_relaxed);
      return before < news && begun.compare_exchange_strong(before, news, std::memory_order_acq_rel);
    }
  };

  static bool has_finished(const Worker& worker, uint64_t news) {
    return worker.finished.load(std::memory_order_relaxed) >= news;
  }

  bool exclude(int thread) override {
    Worker& worker = *workers_[static_cast<size_t>(thread) - 1];
    const uint64_t news = news_.number.load(std::memory_order_relaxed);
    if (!worker.claim(news)) return false;
    worker.finished.store(news, std::memory_order_relaxed);
    return true;
  }

  // Returns how many of the helpers wanted there are: fewer when the system has no more threads to give.
  int grow(int wanted) {
    while (static_cast<int>(workers_.size()) < wanted) {
      const int number = static_cast<int>(workers_.size()) + 1;
      workers_.push_back(std::make_unique<Worker>());
      Worker& worker = *workers_.back();
      try {
        worker.thread =
            std::thread([this, number, &worker, seen = news_.number.load()] { loop(number, worker, seen); });
      } catch (const std::system_error&) {
        workers_.pop_back();
        return number - 1;
      }
    }
    return wanted;
  }

  void loop(int number, Worker& self, uint64_t seen) {
    for (;;) {
      const auto is_news = [&] { return news_.number.load(std::memory_order_acquire) != seen; };
      if (!patience.spin(is_news)) {
        const int64_t since = nanoseconds(CLOCK_MONOTONIC);
        std::unique_lock<std::mutex> lock(mutex_);
        sleep_.sleeping.fetch_add(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        wake_.wait(lock, is_news);
        sleep_.sleeping.fetch_sub(1, std::memory_order_relaxed);
        patience.slept(since);
      }
      seen = news_.number.load(std::memory_order_acquire);
      // A helper's region waits for it; others may be behind already.
      const uint64_t helpers = seen % kNumbers;
      if (static_cast<uint64_t>(number) > helpers) continue;
      if (!self.claim(seen)) {  // too late
        cores_.leave_shared(number, static_cast<int>(helpers) + 1);
        continue;
      }
      cores_.note(number, seen / kNumbers);
      news_.region->work(number, static_cast<int>(helpers) + 1);
      self.finished.store(seen, std::memory_order_release);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      if (sleep_.waiting.load(std::memory_order_relaxed)) {
        const std::lock_guard<std::mutex> lock(mutex_);
        done_.notify_one();
      }
      make_room(number, static_cast<int>(helpers) + 1);
    }
  }

  // Where other programs want this thread's core, it would sooner or later lose it in the middle of an item,
  // and all others would wait: a time slice, or a tenth of a second after it has slept, when it weighs little
  // beside them. Without it they don't. It tries how it would be before it takes part again.
  void make_room(int thread, int team) {
    thread_local int64_t pause = kLeastPause;
    if (!patience.is_crowded(team) || cores_.leave_shared(thread, team)) return;
    for (;;) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
      if (!patience.would_be_crowded(team) || cores_.leave_shared(thread, team)) break;
      pause = std::min(2 * pause, kLongestPause);
    }
    pause = std::max(pause / 2, kLeastPause);
  }
  static constexpr int64_t kLeastPause = 10000000, kLongestPause = 640000000;

  Cores cores_;
  std::mutex use_;
  std::vector<std::unique_ptr<Worker>> workers_;
  // What every helper reads of a region, on one line.
  struct alignas(kLine) {
    std::atomic<uint64_t> number{0};
    Region* region = nullptr;
  } news_;
  // Who goes to sleep says so before it looks once more; who has news, or has finished, looks here
  // afterwards. The fences between keep each in this order, so that one of the two sees the other.
  struct alignas(kLine) {
    std::atomic<int> sleeping{0};
    std::atomic<bool> waiting{false};
  } sleep_;
  alignas(kLine) std::mutex mutex_;
  std::condition_variable wake_, done_;
};

std::atomic<int> requested{0};
std::atomic<bool> own_threads{false};

// A fork leaves the child without the threads of its parent, whose team libgomp would wait for. So a thread
// that forks dismisses its team first, and torch's operators find a new one, there and here. Older libgomps
// can't: the kernels of a child have a pool of its own, whatever its parent had. Pools are never destroyed:
// their threads may still be waiting when the process ends.
std::atomic<Pool*> current_pool{nullptr};
std::atomic<bool> is_forked{false};

void before_fork() {
  constexpr int kSoft = 1;  // settings stay
  const OpenMp* omp = openmp();
  if (omp != nullptr && omp->pause != nullptr) omp->pause(kSoft);
}

const int fork_handler = pthread_atfork(before_fork, nullptr, [] {
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

void count_threads(bool on) {
  is_counting = false;
  regions_counted = meetings_counted = updates_counted = 0;
  is_counting = on;
}

ThreadCounts thread_counts() { return {regions_counted, meetings_counted, updates_counted}; }

void parallel_for(int64_t items, int threads, const Body& body) {
  const Stage stage{items, body};
  parallel_stages(&stage, 1, threads);
}

void parallel_stages(const Stage* stages, int count, int threads) {
  int64_t most = 0;
  for (int s = 0; s < count; ++s) most = std::max(most, stages[s].items);
  if (most <= 0) return;
  const int64_t team = std::min<int64_t>(most, threads > 0 ? threads : num_threads());
  const OpenMp* omp = openmp();
  Region region(stages, count, team);
  if (team == 1 || inside_region || (omp != nullptr && omp->in_parallel() != 0)) {
    region.work(0, 1);
    return;
  }
  if (is_counting.load(std::memory_order_relaxed)) {
    ++regions_counted;
    meetings_counted += count - 1;
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
        // The runtime may give fewer threads than were asked for.
        c.region->work(c.omp->thread_num(), c.omp->num_threads());
      },
      &call, static_cast<unsigned>(team), 0);
}

}  // namespace armllm
