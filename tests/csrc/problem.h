// A batch of sequences with a paged cache, and naive float64 attention to compare with.

#pragma once

#include <stdio.h>

#include <algorithm>
#include <numeric>

#include "head_vector.h"

namespace conformance {

struct Sequence {
  int64_t length, queries;
};

struct Case {
  int64_t query_heads, kv_heads, head_dim, block_size;
  std::vector<Sequence> sequences;
  float magnitude = 1.0f;  // of the logits
  float value_scale = 1.0f;
  int64_t window = INT64_MAX;
  float soft_cap = 0;
  bool alibi = false, sinks = false;
  bool poison =
      false;  // of sequences with several queries, the keys that only the last query sees, and those
              // that only the first sees of a window, are NaN and infinity, and so are their values
  int64_t chunk = 0;
  bool bidirectional = false;
};

template <class T>
struct Problem {
  Case shape;
  armllm::KvCacheType cache_type;
  armllm::KvCacheShape cache_shape;
  armllm::KvCacheLayout layout{};
  int64_t tokens = 0, num_blocks = 0, max_blocks = 0;
  Array<T> query, out;
  Array<char> cache;
  Array<int32_t> block_tables, query_start_loc, seq_lens;
  Array<float> slopes, sinks;
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

  Problem(const armllm::KernelTable& table, const Case& c, Random& random,
          armllm::KvCacheType type = armllm::KvCacheType::plain)
      : shape(c),
        cache_type(type),
        cache_shape{c.kv_heads, c.head_dim, c.block_size},
        layout(armllm::kv_cache_layout(table, Type<T>::kStorage, type, cache_shape)),
        tokens(total(c, true)),
        num_blocks(total(c, false) + 1),  // one block that nobody uses
        max_blocks(most_blocks(c) + 1),
        query(rows(tokens, c.query_heads * c.head_dim, c.query_heads * c.head_dim + 8)),
        out(rows(tokens, c.query_heads * c.head_dim, c.query_heads * c.head_dim + 4), true),
        cache(num_blocks * layout.block_bytes),
        block_tables(static_cast<int64_t>(c.sequences.size()) * max_blocks),
        query_start_loc(static_cast<int64_t>(c.sequences.size()) + 1),
        seq_lens(static_cast<int64_t>(c.sequences.size())),
        slopes(c.query_heads),
        sinks(c.query_heads),
        query_token_stride(c.query_heads * c.head_dim + 8),
        out_token_stride(c.query_heads * c.head_dim + 4),
        scale(1.0f / sqrtf(static_cast<float>(c.head_dim))) {
    // Every slot that no token fills holds NaN, and stays unread.
    memset(cache.data(), 0xff, static_cast<size_t>(cache.size()));
    random.fill(query.data(), query.size(), c.magnitude);
    for (int64_t i = 0; i < out.size(); ++i) from_float(-77.0f, out[i]);
    for (int64_t h = 0; h < c.query_heads; ++h) {
      slopes[h] =
          static_cast<float>(exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(c.query_heads)));
      sinks[h] = h == 0 ? -INFINITY : random.normal() * c.magnitude;
    }
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
      for (int64_t t = 0; t < sequence.length; ++t) {
        if (!is_poisoned(sequence) || (t != sequence.length - 1 && t != first_seen(sequence))) continue;
        for (int64_t i = 0; i < row; ++i) {
          const auto at = static_cast<size_t>(t * row + i);
          from_float(i % 3 == 0 ? NAN : INFINITY, keys.back()[at]);
          from_float(i % 3 == 1 ? NAN : -INFINITY, values.back()[at]);
        }
      }
      write(table, index, random);
      // What no query sees any more may have been given away.
      const int64_t first = first_key(sequence.length - sequence.queries + 1);
      for (int64_t b = 0; b < first / c.block_size; ++b) blocks[b] = -123456;
    }
  }

  // The first key that the last one of so many tokens sees.
  int64_t first_key(int64_t tokens) const {
    if (shape.chunk != 0) return (tokens - 1) / shape.chunk * shape.chunk;
    return tokens <= shape.window ? 0 : tokens - shape.window;
  }
  int64_t end_of_keys(int64_t position, int64_t length) const {
    if (!shape.bidirectional) return position + 1;
    return length - position < shape.window ? length : position + shape.window;
  }
  // The key that only the first query sees, or negative.
  int64_t first_seen(const Sequence& sequence) const {
    return shape.chunk != 0 ? -1 : sequence.length - sequence.queries - shape.window + 1;
  }
  bool is_poisoned(const Sequence& sequence) const { return shape.poison && sequence.queries > 1; }

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
    armllm::write_kv_cache(table, Type<T>::kStorage, cache_type,
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
            scale,
            shape.window,
            shape.chunk,
            shape.bidirectional,
            shape.soft_cap,
            shape.alibi ? slopes.data() : nullptr,
            shape.sinks ? sinks.data() : nullptr};
  }

  void run(const armllm::KernelTable& table) const {
    armllm::paged_attention(table, Type<T>::kStorage, cache_type, args(), num_blocks, tokens);
  }

  // Against what the cache holds, and with an int8 cache also against the keys and values it was made from.
  void check(Result& result) const {
    compare(result, cache_type == armllm::KvCacheType::int8);
    if (cache_type == armllm::KvCacheType::int8) compare(result, false);
  }
  void compare(Result& result, bool rounded) const;
};

// A logit is a sum of head_dim products and a product with the scale; the dot-product instructions round to
// odd, which may cost twice a rounding to nearest. A weight is 2^(logit / ln 2 - base): off by the logit's
// error, the rounding of the scale (or slope) in units of ln 2, as a share of the difference of two logits,
// and the power's own error, not above exp's. Sums over n keys, of weights and of values, add theirs; each
// split of 512 keys two products with a power. With a cache of 16
// bits weights may be rounded to that type. A soft cap's tanh is off by an exp and 8 roundings of its result,
// ALiBi adds a rounding, a sink is one more weight.
//
// With an int8 cache logits are exact but for four roundings, and weights times their value's scale are
// integers up to 127 * 128 in every chunk, so each is off by half of that part of the largest (0.01 more: the
// roundings of the quotient). Against the numbers before they were `rounded`, every element of a query, key
// or value is off by half of its vector's scale besides.
template <class T>
void Problem<T>::compare(Result& result, bool rounded) const {
  const ShortVectors for_reference;
  const int64_t group = shape.query_heads / shape.kv_heads, head_dim = shape.head_dim;
  const bool int8 = cache_type == armllm::KvCacheType::int8;
  char what[200];
  snprintf(what, sizeof what,
           "heads %d/%d, head_dim %d, block_size %d, window %lld, chunk %lld, cap %g%s%s%s%s%s",
           static_cast<int>(shape.query_heads), static_cast<int>(shape.kv_heads), static_cast<int>(head_dim),
           static_cast<int>(shape.block_size), static_cast<long long>(shape.window),
           static_cast<long long>(shape.chunk), static_cast<double>(shape.soft_cap),
           shape.bidirectional ? ", bidirectional" : "", shape.alibi ? ", ALiBi" : "",
           shape.sinks ? ", sinks" : "", shape.poison ? ", poison" : "",
           !int8     ? ""
           : rounded ? ", int8"
                     : ", int8 against the exact numbers");
  int64_t token = 0;
  std::vector<double> logits, value(static_cast<size_t>(head_dim)), magnitude(static_cast<size_t>(head_dim));
  for (size_t s = 0; s < shape.sequences.size(); ++s) {
    const Sequence& sequence = shape.sequences[s];
    std::vector<HeadVector> all_keys, all_values;  // [length, kv_heads]
    for (int64_t i = 0; i < sequence.length * shape.kv_heads && sequence.queries > 0; ++i) {
      all_keys.push_back(seen_as(keys[s].data() + i * head_dim, head_dim, int8, rounded));
      all_values.push_back(seen_as(values[s].data() + i * head_dim, head_dim, int8, rounded));
    }
    const std::vector<double> integers =
        int8 ? sum_integers(all_values, shape.kv_heads, head_dim) : std::vector<double>();
    for (int64_t q = 0; q < sequence.queries; ++q, ++token) {
      if (is_poisoned(sequence) && (q == sequence.queries - 1 || (q == 0 && first_seen(sequence) >= 0))) {
        continue;
      }
      const int64_t position = sequence.length - sequence.queries + q;
      const int64_t begin = first_key(position + 1), end = end_of_keys(position, sequence.length);
      for (int64_t h = 0; h < shape.query_heads; ++h) {
        const HeadVector x =
            seen_as(&query[token * query_token_stride + h * head_dim], head_dim, int8, rounded);
        const auto at = [&](int64_t t) { return static_cast<size_t>(t * shape.kv_heads + h / group); };
        logits.clear();
        double largest = -INFINITY, spread = 0, rounding = 0;
        for (int64_t t = begin; t < end; ++t) {
          const HeadVector& k = all_keys[at(t)];
          const Products products = multiply(x, k);
          double logit = products.sum * static_cast<double>(scale);
          if (shape.soft_cap > 0) {
            const auto cap = static_cast<double>(shape.soft_cap);
            logit = cap * ::tanh(logit / cap);
          }
          if (shape.alibi) logit += static_cast<double>(slopes[h]) * static_cast<double>(t - position);
          logits.push_back(logit);
          largest = std::max(largest, logit);
          spread = std::max(spread, products.magnitude * static_cast<double>(scale));
          rounding = std::max(rounding, (k.scale * x.magnitude + x.scale * k.magnitude +
                                         static_cast<double>(head_dim) * x.scale * k.scale / 2) /
                                            2 * static_cast<double>(scale));
        }
        const auto n = static_cast<double>(end - begin);
        double logit_error = int8 ? 4 * kFloatRound * spread
                                  : (2 * sum_error(static_cast<double>(head_dim)) + 2 * kFloatRound) * spread;
        if (int8 && !rounded) logit_error += 1.001 * rounding;
        if (shape.soft_cap > 0)
          logit_error += std::min<double>(shape.soft_cap, 2 * spread) * (kExpError + 8 * kFloatRound);
        double reach = spread;  // of any logit, for the roundings of their differences
        if (shape.alibi) {
          reach += n * static_cast<double>(slopes[h]);
          logit_error += 2 * kFloatRound * reach;
        }
        double total = 0;
        if (shape.sinks) {
          const auto sink = static_cast<double>(sinks[h]);
          largest = std::max(largest, sink);
          total = exp(sink - largest);
          if (isfinite(sink)) reach = std::max(reach, fabs(sink));
        }
        std::fill(value.begin(), value.end(), 0.0);
        std::fill(magnitude.begin(), magnitude.end(), 0.0);
        double largest_weight = 0, value_rounding = 0;
        for (int64_t t = begin; t < end; ++t) {
          const HeadVector& v = all_values[at(t)];
          const double weight = exp(logits[static_cast<size_t>(t - begin)] - largest);
          total += weight;
          largest_weight = std::max(largest_weight, weight * v.scale);
          value_rounding += weight * v.scale / 2;
          for (size_t d = 0; d < static_cast<size_t>(head_dim); ++d) {
            const double product = weight * v.x[d];
            value[d] += product;
            magnitude[d] += fabs(product);
          }
        }
        const double splits = n / 512 + (shape.sinks ? 2 : 0);
        // Both the sum of the weights and that of the values are off by so much.
        double weight_error =
            expm1(logit_error + 2 * reach * kFloatRound) + kExpError + 2 * sum_error(n) +
            splits * (kExpError + 4 * kFloatRound + (shape.sinks ? 2 * reach * kFloatRound : 0)) +
            2 * kFloatRound;
        if (sizeof(T) == 2 && !int8) weight_error += Type<T>::kRound / 2;
        for (int64_t d = 0; d < head_dim; ++d) {
          const double expected = value[static_cast<size_t>(d)] / total;
          double bound = magnitude[static_cast<size_t>(d)] / total * weight_error * 2 +
                         fabs(expected) * Type<T>::kRound * 1.01 + Type<T>::kTiny;
          if (int8) {
            const double part = std::max(largest_weight * 0.51 / (127 * 128), 0x1p-110);
            const auto column = static_cast<size_t>(d), width = static_cast<size_t>(head_dim);
            const double sum = integers[at(end) * width + column] - integers[at(begin) * width + column];
            bound += sum * part * exp(2 * logit_error) / total;
            if (!rounded) bound += value_rounding * (1 + 2 * weight_error) / total;
            bound *= 1 + Type<T>::kRound;
          }
          result.compare_stored(out[token * out_token_stride + h * head_dim + d], expected, bound, what,
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

}  // namespace conformance
