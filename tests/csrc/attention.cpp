// Attention against naive float64 attention, and threads.

#include "armllm/threads.h"
#include "problem.h"

namespace conformance {

namespace {

// Small, since the reference takes most of the time under an emulator.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {1, 1, 8, 16, {}},
      {1, 1, 8, 16, {{0, 0}}},
      {1, 1, 8, 16, {{1, 1}}},
      {2, 1, 16, 16, {{5, 5}, {17, 1}, {3, 0}, {16, 16}}},
      {4, 4, 64, 16, {{33, 33}, {64, 1}, {65, 2}}},
      {8, 2, 64, 32, {{130, 7}, {31, 31}, {1, 1}}},
      {6, 1, 80, 64, {{100, 9}, {700, 1}}},
      {14, 2, 64, 16, {{513, 1}, {512, 3}, {511, 2}, {1025, 1}}},
      {7, 7, 24, 128, {{129, 5}, {140, 140}}},
      {32, 8, 128, 16, {{90, 1}, {47, 12}}},
      {5, 1, 40, 32, {{530, 20}}},
      {3, 3, 96, 16, {{71, 40}, {96, 1}, {97, 1}}},
      {16, 4, 112, 32, {{34, 3}, {190, 1}}},
      {4, 1, 192, 64, {{66, 66}}},
      {2, 2, 256, 16, {{19, 4}, {300, 1}}},
      {71, 1, 64, 16, {{20, 2}, {97, 1}}},
      {12, 4, 72, 16, {{41, 13}}},
      {4, 2, 64, 16, {{80, 20}}, 60.0f, 1.0f},
      {4, 2, 64, 16, {{80, 20}}, 1e-20f, 1e-30f},
      {4, 2, 64, 16, {{80, 20}}, 1.0f, 1e30f},
      // Sliding windows: shorter than a block, one key, past a split, longer than the sequence.
      {4, 2, 64, 16, {{50, 50}, {33, 1}, {90, 3}}, 1.0f, 1.0f, 7},
      {3, 1, 40, 32, {{45, 45}}, 1.0f, 1.0f, 1},
      {2, 1, 32, 16, {{1200, 40}, {1100, 1}}, 1.0f, 1.0f, 520},
      {2, 1, 32, 16, {{100, 10}}, 1.0f, 1.0f, 100000},
      // Soft caps, ALiBi and sinks, alone and together.
      {4, 2, 64, 16, {{80, 20}, {17, 1}}, 9.0f, 1.0f, INT64_MAX, 5.0f},
      {8, 1, 48, 16, {{60, 60}, {600, 2}}, 1.0f, 1.0f, INT64_MAX, 0.0f, true},
      {4, 4, 64, 32, {{40, 7}, {1, 1}, {520, 1}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, true},
      {6, 2, 80, 16, {{140, 30}, {600, 1}}, 3.0f, 1.0f, 33, 20.0f, true, true},
      // Infinite keys and values of a later token spoil no earlier row.
      {4, 2, 64, 16, {{20, 20}, {70, 5}, {33, 1}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, true},
      {16, 2, 24, 16, {{100, 50}}, 1.0f, 1.0f, 20, 0.0f, false, true, true},
      // Chunks: shorter than a block, one key, past a split, longer than the sequence.
      {4, 2, 64, 16, {{50, 50}, {33, 1}, {90, 3}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, false, 7},
      {3, 1, 40, 32, {{45, 45}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, true, 1},
      {2, 1, 32, 16, {{1200, 40}, {1041, 1}}, 1.0f, 1.0f, INT64_MAX, 5.0f, true, true, false, 520},
      {2, 1, 32, 16, {{100, 10}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, false, 100000},
      // Both sides: whole sequences, past a split, the last tokens only, windows.
      {4, 4, 32, 16, {{40, 40}, {1, 1}, {17, 17}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, false, 0, true},
      {2, 1, 64, 32, {{1100, 5}, {90, 90}}, 3.0f, 1.0f, INT64_MAX, 9.0f, true, true, false, 0, true},
      {4, 2, 40, 16, {{70, 70}, {50, 3}}, 1.0f, 1.0f, 9, 0.0f, true, false, false, 0, true},
      {1, 1, 8, 16, {{520, 520}}, 1.0f, 1.0f, INT64_MAX, 0.0f, false, false, false, 0, true},
      {2, 2, 16, 16, {{600, 70}, {30, 30}}, 1.0f, 1.0f, 520, 0.0f, false, false, false, 0, true},
      {2, 2, 80, 128, {{45, 45}}, 1.0f, 1.0f, 1, 0.0f, false, false, false, 0, true},
  };
  return all;
}

template <class T>
Result attention_cases(const Context& context, armllm::KvCacheType cache) {
  Result result;
  Random random(context.seed);
  for (const Case& c : cases()) {
    const Problem<T> problem(context.table, c, random, cache);
    problem.run(context.table);
    problem.check(result);
  }
  for (int i = 0; i < 16; ++i) {
    Case c{};
    c.kv_heads = random.integer(1, 3);
    c.query_heads = c.kv_heads * random.integer(1, 7);
    c.head_dim = 8 * random.integer(1, 16);
    c.block_size = 16 << random.integer(0, 3);
    for (int64_t s = random.integer(1, 4); s > 0; --s) {
      const int64_t length = random.integer(0, 120);
      c.sequences.push_back({length, random.integer(0, std::min<int64_t>(length, 12))});
    }
    if (random.integer(0, 1) == 1) c.window = random.integer(1, 60);
    if (c.window == INT64_MAX && random.integer(0, 2) == 1) c.chunk = random.integer(1, 60);
    if (random.integer(0, 2) == 1) c.soft_cap = 1.0f + 30.0f * static_cast<float>(random.uniform());
    c.alibi = random.integer(0, 2) == 1;
    c.sinks = random.integer(0, 2) == 1;
    c.bidirectional = c.chunk == 0 && random.integer(0, 3) == 1;
    c.poison = !c.bidirectional && random.integer(0, 3) == 1;
    const Problem<T> problem(context.table, c, random, cache);
    problem.run(context.table);
    problem.check(result);
  }
  return result;
}

template <class T>
Result test_paged_attention(const Context& context) {
  return attention_cases<T>(context, armllm::KvCacheType::plain);
}

template <class T>
Result test_paged_attention_int8(const Context& context) {
  return attention_cases<T>(context, armllm::KvCacheType::int8);
}

template <class T>
void compare_thread_counts(Result& result, const Case& c, uint64_t seed,
                           armllm::KvCacheType cache = armllm::KvCacheType::plain) {
  const armllm::KernelTable& table = armllm::dispatched().table;
  Random random(seed);
  const Problem<T> problem(table, c, random, cache);
  std::vector<char> first;
  for (const int threads : {1, 2, 3, 8}) {
    armllm::set_num_threads(threads);
    problem.run(table);
    const auto bytes = static_cast<size_t>(problem.out.size()) * sizeof(T);
    if (first.empty())
      first.assign(reinterpret_cast<char*>(problem.out.data()),
                   reinterpret_cast<char*>(problem.out.data()) + bytes);
    if (memcmp(first.data(), problem.out.data(), bytes) != 0) {
      result.fail("paged_attention gives other bits on " + std::to_string(threads) + " threads");
    }
    ++result.cases;
  }
  problem.check(result);
  // Alone, the first sequence gives the bits that it gives in company.
  armllm::PagedAttentionArgs alone = problem.args();
  alone.num_seqs = 1;
  armllm::paged_attention(table, Type<T>::kStorage, cache, alone, problem.num_blocks,
                          problem.query_start_loc[1]);
  if (memcmp(first.data(), problem.out.data(), first.size()) != 0) {
    result.fail("paged_attention gives a sequence other bits when it is alone");
  }
  ++result.cases;
  armllm::set_num_threads(0);
}

}  // namespace

Result test_thread_counts(uint64_t seed) {
  Result result;
  const Case few_long{4, 1, 64, 16, {{3000, 1}, {1500, 2}}};
  const Case window{4, 1, 32, 16, {{1800, 1}, {700, 2}}, 1.0f, 1.0f, 1000, 9.0f, true, true};
  const Case many{8, 2, 64, 32, {{700, 1}, {40, 40}, {513, 4}, {40, 1}, {1, 1}, {600, 20}}};
  for (const Case& c : {few_long, many, window}) {
    compare_thread_counts<float>(result, c, seed);
    compare_thread_counts<float16>(result, c, seed);
    compare_thread_counts<bfloat16>(result, c, seed);
    compare_thread_counts<bfloat16>(result, c, seed, armllm::KvCacheType::int8);
  }
  return result;
}

const std::vector<NamedTest>& attention_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(paged_attention, test_paged_attention),
      CONFORMANCE_STORAGES(paged_attention_int8, test_paged_attention_int8)};
  return tests;
}

}  // namespace conformance
