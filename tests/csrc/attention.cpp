// The KV cache and attention against naive float64 attention.

#include <algorithm>
#include <numeric>

#include "armllm/threads.h"
#include "support.h"

namespace conformance {

namespace {

constexpr double u = kFloatRound;

struct Sequence {
  int64_t length, queries;
};

struct Case {
  int64_t query_heads, kv_heads, head_dim, block_size;
  std::vector<Sequence> sequences;
  float magnitude = 1.0f;  // of the logits
  float value_scale = 1.0f;
};

template <class T>
struct Problem {
  Case shape;
  armllm::KvCacheShape cache_shape;
  armllm::KvCacheLayout layout{};
  int64_t tokens = 0, num_blocks = 0, max_blocks = 0;
  Array<T> query, out;
  Array<char> cache;
  Array<int32_t> block_tables, query_start_loc, seq_lens;
  std::vector<std::vector<T>> keys, values;  // per sequence [length, kv_heads, head_dim]
  int64_t query_token_stride, out_token_stride;
  float scale;

  static int64_t blocks_of(const Case& c, int64_t length) {
    return (length + c.block_size - 1) / c.block_size;
  }
  static int64_t total(const Case& c, bool queries) {
    int64_t n = 0;
    for (const Sequence& s : c.sequences) n += queries ? s.queries : blocks_of(c, s.length);
    return n;
  }
  static int64_t most_blocks(const Case& c) {
    int64_t n = 1;
    for (const Sequence& s : c.sequences) n = std::max(n, blocks_of(c, s.length));
    return n;
  }
  static int64_t rows(int64_t n, int64_t width, int64_t stride) {
    return n == 0 ? 0 : (n - 1) * stride + width;
  }

  Problem(const armllm::KernelTable& table, const Case& c, Random& random)
      : shape(c),
        cache_shape{c.kv_heads, c.head_dim, c.block_size},
        layout(armllm::kv_cache_layout(table, Type<T>::kStorage, cache_shape)),
        tokens(total(c, true)),
        num_blocks(total(c, false) + 1),  // one block that nobody uses
        max_blocks(most_blocks(c) + 1),
        query(rows(tokens, c.query_heads * c.head_dim, c.query_heads * c.head_dim + 8)),
        out(rows(tokens, c.query_heads * c.head_dim, c.query_heads * c.head_dim + 4), true),
        cache(num_blocks * layout.block_bytes),
        block_tables(static_cast<int64_t>(c.sequences.size()) * max_blocks),
        query_start_loc(static_cast<int64_t>(c.sequences.size()) + 1),
        seq_lens(static_cast<int64_t>(c.sequences.size())),
        query_token_stride(c.query_heads * c.head_dim + 8),
        out_token_stride(c.query_heads * c.head_dim + 4),
        scale(1.0f / sqrtf(static_cast<float>(c.head_dim))) {
    // Every slot that no token fills holds NaN, and stays unread.
    memset(cache.data(), 0xff, static_cast<size_t>(cache.size()));
    random.fill(query.data(), query.size(), c.magnitude);
    for (int64_t i = 0; i < out.size(); ++i) from_float(-77.0f, out[i]);
    std::vector<int32_t> free_blocks(static_cast<size_t>(num_blocks));
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    for (size_t i = free_blocks.size(); i > 1; --i) {
      std::swap(free_blocks[i - 1],
                free_blocks[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    query_start_loc[0] = 0;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const auto index = static_cast<int64_t>(s);
      const Sequence& sequence = c.sequences[s];
      query_start_loc[index + 1] = static_cast<int32_t>(query_start_loc[index] + sequence.queries);
      seq_lens[index] = static_cast<int32_t>(sequence.length);
      int32_t* blocks = &block_tables[index * max_blocks];
      for (int64_t b = 0; b < max_blocks; ++b) blocks[b] = -123456;
      for (int64_t b = 0; b < blocks_of(c, sequence.length); ++b) {
        blocks[b] = free_blocks.back();
        free_blocks.pop_back();
      }
      const int64_t row = c.kv_heads * c.head_dim;
      keys.emplace_back(static_cast<size_t>(sequence.length * row));
      values.emplace_back(static_cast<size_t>(sequence.length * row));
      random.fill(keys.back().data(), sequence.length * row, 1.0f);
      random.fill(values.back().data(), sequence.length * row, c.value_scale);
      write(table, index, random);
    }
  }

  // One call, the tokens in any order, some of them skipped.
  void write(const armllm::KernelTable& table, int64_t s, Random& random) {
    const int64_t length = shape.sequences[static_cast<size_t>(s)].length,
                  row = shape.kv_heads * shape.head_dim;
    const int64_t stride = row + 5, count = length + 2;
    Array<T> key(rows(count, row, stride)), value(rows(count, row, stride), true);
    Array<int64_t> slots(count);
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
    }
    for (int64_t t = 0; t < count; ++t) {
      const int64_t place = order[static_cast<size_t>(t)];
      slots[place] = -1 - t;
      if (t >= length) continue;
      slots[place] =
          block_tables[s * max_blocks + t / shape.block_size] * shape.block_size + t % shape.block_size;
      memcpy(&key[place * stride], &keys.back()[static_cast<size_t>(t * row)],
             static_cast<size_t>(row) * sizeof(T));
      memcpy(&value[place * stride], &values.back()[static_cast<size_t>(t * row)],
             static_cast<size_t>(row) * sizeof(T));
    }
    armllm::write_kv_cache(table, Type<T>::kStorage,
                           {key.data(), value.data(), cache.data(), slots.data(), cache_shape, layout, count,
                            stride, shape.head_dim, stride, shape.head_dim},
                           num_blocks);
  }

  armllm::PagedAttentionArgs args() const {
    return {out.data(),
            query.data(),
            cache.data(),
            block_tables.data(),
            query_start_loc.data(),
            seq_lens.data(),
            cache_shape,
            layout,
            static_cast<int64_t>(shape.sequences.size()),
            shape.query_heads,
            max_blocks,
            max_blocks,
            out_token_stride,
            shape.head_dim,
            query_token_stride,
            shape.head_dim,
            scale};
  }

  void run(const armllm::KernelTable& table) const {
    armllm::paged_attention(table, Type<T>::kStorage, args(), num_blocks, tokens);
  }

  void check(Result& result) const;
};

// A logit is a sum of head_dim products and a product with the scale; the dot-product instructions round to
// odd, which may cost twice a rounding to nearest. A weight is exp(logit - largest): off by the logit's
// error, the subtraction's rounding and exp's own error (the error of `largest` cancels). Sums over n keys,
// of weights and of values, add theirs; each split of 512 keys two products with an exp. With a bfloat16
// cache weights may be rounded to bfloat16.
template <class T>
void Problem<T>::check(Result& result) const {
  const int64_t group = shape.query_heads / shape.kv_heads, head_dim = shape.head_dim;
  const int64_t row = shape.kv_heads * head_dim;
  char what[160];
  snprintf(what, sizeof what, "heads %d/%d, head_dim %d, block_size %d", static_cast<int>(shape.query_heads),
           static_cast<int>(shape.kv_heads), static_cast<int>(head_dim), static_cast<int>(shape.block_size));
  int64_t token = 0;
  std::vector<double> x(static_cast<size_t>(head_dim)), logits, value(static_cast<size_t>(head_dim)),
      magnitude(static_cast<size_t>(head_dim));
  for (size_t s = 0; s < shape.sequences.size(); ++s) {
    const Sequence& sequence = shape.sequences[s];
    for (int64_t q = 0; q < sequence.queries; ++q, ++token) {
      const int64_t n = sequence.length - sequence.queries + q + 1;
      for (int64_t h = 0; h < shape.query_heads; ++h) {
        for (int64_t d = 0; d < head_dim; ++d) {
          x[static_cast<size_t>(d)] = to_double(query[token * query_token_stride + h * head_dim + d]);
        }
        const T* k = keys[s].data() + h / group * head_dim;
        const T* v = values[s].data() + h / group * head_dim;
        logits.assign(static_cast<size_t>(n), 0);
        double largest = -INFINITY, spread = 0;
        for (int64_t t = 0; t < n; ++t) {
          double sum = 0, absolute = 0;
          for (int64_t d = 0; d < head_dim; ++d) {
            const double product = x[static_cast<size_t>(d)] * to_double(k[t * row + d]);
            sum += product;
            absolute += fabs(product);
          }
          logits[static_cast<size_t>(t)] = sum * static_cast<double>(scale);
          largest = std::max(largest, sum * static_cast<double>(scale));
          spread = std::max(spread, absolute * static_cast<double>(scale));
        }
        double total = 0;
        std::fill(value.begin(), value.end(), 0.0);
        std::fill(magnitude.begin(), magnitude.end(), 0.0);
        for (int64_t t = 0; t < n; ++t) {
          const double weight = exp(logits[static_cast<size_t>(t)] - largest);
          total += weight;
          for (int64_t d = 0; d < head_dim; ++d) {
            const double product = weight * to_double(v[t * row + d]);
            value[static_cast<size_t>(d)] += product;
            magnitude[static_cast<size_t>(d)] += fabs(product);
          }
        }
        const double logit_error = (2 * sum_error(static_cast<double>(head_dim)) + 2 * u) * spread;
        const double splits = static_cast<double>(n) / 512;
        // Both the sum of the weights and that of the values are off by so much.
        double weight_error = expm1(logit_error + 2 * spread * u) + kExpError +
                              2 * sum_error(static_cast<double>(n)) + splits * (kExpError + 4 * u) + 2 * u;
        if (sizeof(T) == 2) weight_error += Type<T>::kRound / 2;
        for (int64_t d = 0; d < head_dim; ++d) {
          const double expected = value[static_cast<size_t>(d)] / total;
          const double bound = magnitude[static_cast<size_t>(d)] / total * weight_error * 2 +
                               fabs(expected) * Type<T>::kRound * 1.01 + Type<T>::kTiny;
          result.compare(to_double(out[token * out_token_stride + h * head_dim + d]), expected, bound, what,
                         token, h * head_dim + d);
        }
      }
    }
  }
  for (int64_t i = 0; i < out.size(); ++i) {
    if (i % out_token_stride >= shape.query_heads * head_dim && to_float(out[i]) != -77.0f) {
      result.fail("wrote between rows of out");
      break;
    }
  }
  ++result.cases;
}

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
      {5, 1, 40, 32, {{530, 70}}},
      {3, 3, 96, 16, {{71, 40}, {96, 1}, {97, 1}}},
      {16, 4, 112, 32, {{34, 3}, {190, 1}}},
      {4, 1, 192, 64, {{66, 66}}},
      {2, 2, 256, 16, {{19, 4}, {300, 1}}},
      {71, 1, 64, 16, {{20, 2}, {97, 1}}},
      {12, 4, 72, 16, {{41, 13}}},
      {4, 2, 64, 16, {{80, 20}}, 60.0f, 1.0f},
      {4, 2, 64, 16, {{80, 20}}, 1e-20f, 1e-30f},
      {4, 2, 64, 16, {{80, 20}}, 1.0f, 1e30f},
  };
  return all;
}

template <class T>
Result test_paged_attention(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const Case& c : cases()) {
    const Problem<T> problem(context.table, c, random);
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
      const int64_t length = random.integer(0, 150);
      c.sequences.push_back({length, random.integer(0, std::min<int64_t>(length, 25))});
    }
    const Problem<T> problem(context.table, c, random);
    problem.run(context.table);
    problem.check(result);
  }
  return result;
}

// Every slot has bytes of its own, and together they fill the block.
template <class T>
Result test_write_kv_cache(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t head_dim : {8, 24, 64, 80, 128, 256}) {
    for (const int64_t block_size : {16, 32, 64, 128}) {
      const int64_t heads = random.integer(1, 3), row = heads * head_dim;
      const armllm::KvCacheShape shape{heads, head_dim, block_size};
      const armllm::KvCacheLayout layout = armllm::kv_cache_layout(context.table, Type<T>::kStorage, shape);
      Array<char> cache(2 * layout.block_bytes);
      memset(cache.data(), 0, static_cast<size_t>(cache.size()));
      Array<T> key(row), value(row);
      Array<int64_t> slot(1);
      std::vector<char> before(static_cast<size_t>(cache.size()));
      std::vector<uint16_t> all;
      for (int64_t offset = 0; offset < block_size; ++offset) {
        for (int64_t i = 0; i < row; ++i) {
          from_float(1.0f + static_cast<float>(random.integer(0, 100)), key[i]);
          from_float(-1.0f - static_cast<float>(random.integer(0, 100)), value[i]);
        }
        slot[0] = block_size + offset;
        memcpy(before.data(), cache.data(), before.size());
        armllm::write_kv_cache(context.table, Type<T>::kStorage,
                               {key.data(), value.data(), cache.data(), slot.data(), shape, layout, 1, row,
                                head_dim, row, head_dim},
                               2);
        std::vector<float> written, expected;
        for (int64_t i = 0; i < cache.size() / static_cast<int64_t>(sizeof(T)); ++i) {
          T now, old;
          memcpy(&now, cache.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
          memcpy(&old, before.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
          if (memcmp(&now, &old, sizeof(T)) == 0) continue;
          if (to_float(old) != 0) result.fail("a slot overwrites another");
          written.push_back(to_float(now));
        }
        for (int64_t i = 0; i < row; ++i) {
          expected.push_back(to_float(key[i]));
          expected.push_back(to_float(value[i]));
        }
        std::sort(written.begin(), written.end());
        std::sort(expected.begin(), expected.end());
        if (written != expected) result.fail("a slot doesn't hold its key and value");
      }
      for (int64_t i = 0; i < cache.size(); ++i) {
        if (i < layout.block_bytes && cache[i] != 0) result.fail("wrote into another block");
      }
      ++result.cases;
    }
  }
  return result;
}

template <class T>
Result test_kv_cache_layout(const Context& context) {
  Result result;
  for (const int64_t heads : {1, 3, 8}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const int64_t block_size : {16, 32, 64, 128}) {
        const armllm::KvCacheLayout layout =
            armllm::kv_cache_layout(context.table, Type<T>::kStorage, {heads, head_dim, block_size});
        const int64_t part = head_dim * block_size * static_cast<int64_t>(sizeof(T));
        if (layout.block_bytes % 64 != 0) result.fail("block_bytes is not a multiple of 64");
        if (layout.value_offset_bytes < part || layout.head_stride_bytes < layout.value_offset_bytes + part ||
            layout.block_bytes < heads * layout.head_stride_bytes) {
          result.fail("the parts of a block overlap");
        }
        ++result.cases;
      }
    }
  }
  return result;
}

template <class T>
void compare_thread_counts(Result& result, const Case& c, uint64_t seed, bool bits_of_one_sequence) {
  const armllm::KernelTable& table = armllm::chosen().table;
  Random random(seed);
  const Problem<T> problem(table, c, random);
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
  if (!bits_of_one_sequence) return;
  // Alone, the first sequence gives the bits that it gives in company.
  armllm::PagedAttentionArgs alone = problem.args();
  alone.num_seqs = 1;
  armllm::paged_attention(table, Type<T>::kStorage, alone, problem.num_blocks, problem.query_start_loc[1]);
  if (memcmp(first.data(), problem.out.data(), first.size()) != 0) {
    result.fail("paged_attention gives a sequence other bits when it is alone");
  }
  ++result.cases;
  armllm::set_num_threads(0);
}

}  // namespace

Result test_threads(uint64_t seed) {
  Result result;
  const Case few_long{4, 1, 64, 16, {{3000, 1}, {1500, 2}}};
  const Case many{8, 2, 64, 32, {{700, 1}, {40, 40}, {513, 4}, {40, 1}, {1, 1}, {600, 20}}};
  for (const Case& c : {few_long, many}) {
    compare_thread_counts<float>(result, c, seed, true);
    compare_thread_counts<bfloat16>(result, c, seed, true);
  }
  // Every item once, whatever the number of threads; nested regions too.
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
  return result;
}

const std::vector<NamedTest>& attention_tests() {
  static const std::vector<NamedTest> tests = {
      {"kv_cache_layout_f32", test_kv_cache_layout<float>},
      {"kv_cache_layout_bf16", test_kv_cache_layout<bfloat16>},
      {"write_kv_cache_f32", test_write_kv_cache<float>},
      {"write_kv_cache_bf16", test_write_kv_cache<bfloat16>},
      {"paged_attention_f32", test_paged_attention<float>},
      {"paged_attention_bf16", test_paged_attention<bfloat16>},
  };
  return tests;
}

}  // namespace conformance
