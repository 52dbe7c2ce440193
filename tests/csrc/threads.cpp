// What threads may do and callers rely on: every item once, stages in order, and a number of threads that
// changes while something is computed.

#include <sched.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "armllm/threads.h"
#include "cores.h"
#include "problem.h"

namespace conformance {

namespace {

// A thread leaves the core of another one, only that, and may return.
void test_cores(Result& result) {
  cpu_set_t before, after;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return;
  const bool has_two = CPU_COUNT(&before) > 1;
  bool left = false, is_elsewhere = false;
  for (int i = 0; i < 20 && !is_elsewhere; ++i) {  // the system may move the thread meanwhile
    armllm::Cores cores;
    if (cores.leave_shared(0, 2)) result.fail("a thread left a core that no other had");
    const int core = sched_getcpu();
    cores.note(1, 16);
    left = cores.leave_shared(0, 2);
    is_elsewhere = left && sched_getcpu() != core;
  }
  if (is_elsewhere != has_two)
    result.fail(left ? "a thread stayed on a shared core" : "a thread did not leave");
  sched_getaffinity(0, sizeof after, &after);
  if (!CPU_EQUAL(&before, &after)) result.fail("a thread that left a core may not return");
  ++result.cases;
}

// Every item once, whatever the number of threads; nested regions too.
void test_items(Result& result) {
  for (const int threads : {1, 2, 7}) {
    armllm::set_num_threads(threads);
    std::vector<int> seen(1000, 0), inner(1000, 0);
    armllm::parallel_for(1000, 0, [&](int64_t i, int thread) {
      ++seen[static_cast<size_t>(i)];
      if (thread < 0 || thread >= threads) seen[static_cast<size_t>(i)] = -1;
      armllm::parallel_for(1, 0, [&](int64_t, int) { ++inner[static_cast<size_t>(i)]; });
    });
    for (const int n : seen) {
      if (n != 1)
        result.fail("parallel_for on " + std::to_string(threads) + " threads missed or repeated an item");
    }
    if (inner != seen) result.fail("a nested parallel_for missed or repeated an item");
    ++result.cases;
  }
  armllm::set_num_threads(0);
}

// Stage after stage sees what the one before wrote, on each number of threads: one, a group, several groups.
void test_stages(Result& result) {
  for (const bool own : {false, true}) {
    armllm::use_own_threads(own);
    for (const int threads : {1, 2, 7, 8, 9, 40}) {
      for (const int64_t items : {1, 5, 40, 1000}) {
        std::vector<int64_t> first(static_cast<size_t>(items)), second(3, 0),
            third(static_cast<size_t>(items));
        const auto write = [&](int64_t i, int) { first[static_cast<size_t>(i)] += i + 1; };
        const auto add = [&](int64_t i, int) {
          for (const int64_t n : first) second[static_cast<size_t>(i)] += n;
        };
        const auto read = [&](int64_t i, int thread) {
          const bool is_known = thread >= 0 && thread < threads;
          third[static_cast<size_t>(i)] += is_known ? second[0] + second[1] + second[2] : -1;
        };
        const armllm::Stage stages[] = {{items, write}, {3, add}, {items, read}};
        armllm::parallel_stages(stages, 3, threads);
        const int64_t sum = 3 * (items * (items + 1) / 2);
        if (third != std::vector<int64_t>(static_cast<size_t>(items), sum)) {
          result.fail("stages of " + std::to_string(items) + " items on " + std::to_string(threads) +
                      " threads missed or repeated an item, or did not see the stage before");
        }
        ++result.cases;
      }
    }
  }
  armllm::use_own_threads(false);
}

// Helpers that sleep, or have no core, are late: the caller does their items, each once, and in stages too.
// With one core for 40 threads most are.
void test_latecomers(Result& result) {
  armllm::use_own_threads(true);
  constexpr int kThreads = 40;
  for (int round = 0; round < 60; ++round) {
    if (round % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // longer than they spin
    std::vector<std::atomic<int>> first(kThreads), second(kThreads);
    std::atomic<int> early{0};
    const auto write = [&](int64_t i, int) { ++first[static_cast<size_t>(i)]; };
    const auto read = [&](int64_t i, int) {
      for (const auto& n : first) early += n != 1;
      ++second[static_cast<size_t>(i)];
    };
    const armllm::Stage stages[] = {{kThreads, write}, {kThreads, read}};
    armllm::parallel_stages(stages, 2, kThreads);
    for (const auto& n : second) early += n != 1;
    if (early != 0) result.fail("an item of a late thread was missed, repeated or out of order");
    ++result.cases;
  }
  armllm::use_own_threads(false);
}

// Calls `compute` again and again, each time on a thread whose scratch memory is new, and sets another number
// of threads after another part of the time that it takes.
template <class Compute>
void while_counts_change(Result& result, const char* what, const Compute& compute, const char* out,
                         size_t bytes) {
  constexpr int kRuns = 16;
  using Clock = std::chrono::steady_clock;
  armllm::set_num_threads(1);
  compute();
  const std::vector<char> expected(out, out + bytes);
  const auto begin = Clock::now();
  compute();
  const auto whole = Clock::now() - begin;
  for (int run = 0; run < kRuns; ++run) {
    armllm::set_num_threads(1);
    std::atomic<bool> started{false};
    std::thread computing([&] {
      started = true;
      compute();
    });
    while (!started) std::this_thread::yield();
    std::this_thread::sleep_for(whole * run / kRuns);
    armllm::set_num_threads(24);
    computing.join();
    if (memcmp(expected.data(), out, bytes) != 0) {
      result.fail(std::string(what) + " gives other bits when the number of threads changes");
    }
    ++result.cases;
  }
  armllm::set_num_threads(0);
}

// A packed weight of random numbers.
Array<char> packed(const armllm::KernelTable& table, const armllm::WeightShape& shape, Random& random) {
  const int64_t n = shape.out_features, k = shape.in_features, groups = armllm::weight_groups(shape);
  const Array<int8_t> q(n * k);
  const Array<float> scales(n * groups);
  for (int64_t i = 0; i < n * k; ++i) q[i] = static_cast<int8_t>(random.integer(-8, 7));
  for (int64_t i = 0; i < n * groups; ++i) scales[i] = 0x1p-7f;
  Array<char> weight((armllm::packed_bytes(table, 4, shape) + 63) / 64 * 64);
  armllm::pack_weight(table, 4, {weight.data(), q.data(), scales.data(), nullptr, shape, k});
  return weight;
}

void test_count_changes(Result& result, uint64_t seed) {
  const armllm::KernelTable& table = armllm::dispatched().table;
  Random random(seed);
  constexpr int64_t kRows = 400, kHidden = 256, kWidth = 128;
  const armllm::WeightShape wide{2 * kWidth, kHidden, 0, false}, narrow{kHidden, kWidth, 0, false};
  const Array<char> up = packed(table, wide, random), down = packed(table, narrow, random);
  const Array<float> x(kRows * kHidden), out(kRows * kHidden), share(kRows);
  const Array<int64_t> ids(kRows);
  random.fill(x.data(), x.size(), 1);
  for (int64_t i = 0; i < kRows; ++i) {
    share[i] = 1;
    ids[i] = i % 2;
  }
  const void* const ups[] = {up.data(), up.data()};
  const void* const downs[] = {down.data(), down.data()};
  const auto bytes = static_cast<size_t>(out.size()) * sizeof(float);
  const char* const memory = reinterpret_cast<char*>(out.data());

  // Scales in 16 bits go through scratch memory of each thread.
  const armllm::WeightShape groups{2 * kWidth, kHidden, 32, false, Storage::bf16};
  const Array<char> grouped = packed(table, groups, random);
  if (armllm::matmul_kernel(table, 4, Storage::f32).scratch_bytes(groups, kRows) == 0) {
    result.fail("matmul_w4a8 has no scratch memory for scales in 16 bits");
  }
  const auto matmul = [&] {
    armllm::matmul(table, form_of(4), Storage::f32,
                   {out.data(), x.data(), nullptr, grouped.data(), nullptr, groups, kRows, kHidden, kHidden});
  };
  while_counts_change(result, "matmul_w4a8", matmul, memory, bytes);
  const auto moe = [&] {
    armllm::moe(table, form_of(4), Storage::f32, armllm::Function::silu_and_mul,
                {out.data(), x.data(), ids.data(), share.data(), ups, downs, wide, narrow, kRows, 1, 2,
                 kHidden, kHidden});
  };
  while_counts_change(result, "moe_w4a8", moe, memory, bytes);
  const Case batch{8, 2, 64, 32, {{700, 1}, {40, 40}, {513, 4}, {40, 1}, {1, 1}, {600, 20}}};
  const Problem<float> problem(table, batch, random);
  const auto attention = [&] { problem.run(table); };
  while_counts_change(result, "paged_attention", attention, reinterpret_cast<char*>(problem.out.data()),
                      static_cast<size_t>(problem.out.size()) * sizeof(float));
}

}  // namespace

Result test_threads(uint64_t seed) {
  Result result;
  test_cores(result);
  test_items(result);
  test_stages(result);
  test_latecomers(result);
  test_count_changes(result, seed);
  return result;
}

}  // namespace conformance
