// The parts of attention that don't depend on the cache's layout: masks, online softmax, merging, the output.

#pragma once

#include "kernels/tanh.h"

// The position of a row's token in its sequence.
ARMLLM_INLINE int64_t position_of(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  const int64_t queries = a.query_start_loc[tile.sequence + 1] - a.query_start_loc[tile.sequence];
  return a.seq_lens[tile.sequence] - queries + row / group;
}

// The end of the keys, counted from the sequence's start, that it may see.
ARMLLM_INLINE int64_t visible_keys(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row) {
  const int64_t position = position_of(a, tile, row), length = a.seq_lens[tile.sequence];
  if (!a.bidirectional) return position + 1;
  return length - position < a.sliding_window ? length : position + a.sliding_window;
}

// The first key that it may see.
ARMLLM_INLINE int64_t first_key(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row) {
  const int64_t position = position_of(a, tile, row);
  if (a.chunk_size != 0) return position / a.chunk_size * a.chunk_size;
  return position < a.sliding_window ? 0 : position - a.sliding_window + 1;
}

// The keys that a row sees, and those that all rows of the tile see, among the n keys from `begin` on.
struct KeyRange {
  int64_t first, last;
};
ARMLLM_INLINE int64_t clamp(int64_t x, int64_t n) { return x < 0 ? 0 : x < n ? x : n; }
ARMLLM_INLINE KeyRange seen_by(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row,
                               int64_t begin, int64_t n) {
  return {clamp(first_key(a, tile, row) - begin, n), clamp(visible_keys(a, tile, row) - begin, n)};
}
ARMLLM_INLINE KeyRange seen_by_all(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t begin,
                                   int64_t n) {
  const KeyRange lowest = seen_by(a, tile, tile.row_begin, begin, n);
  if (tile.row_end - tile.row_begin == 1) return lowest;
  const KeyRange highest = seen_by(a, tile, tile.row_end - 1, begin, n);
  return highest.first < lowest.last ? KeyRange{highest.first, lowest.last} : KeyRange{0, 0};
}

// Where a split begins: at its own start, or at the sliding window's, down to a multiple of 16 tokens.
ARMLLM_INLINE int64_t split_begin(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split) {
  const int64_t window = first_key(a, tile, tile.row_begin) / 16 * 16, start = split * kAttentionSplit;
  return start < window ? window : start;
}
ARMLLM_INLINE int64_t split_end(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split) {
  const int64_t visible = visible_keys(a, tile, tile.row_end - 1), last = (split + 1) * kAttentionSplit;
  return visible < last ? visible : last;
}

ARMLLM_INLINE int64_t query_head(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  return tile.kv_head * group + row % group;
}

// The offset of a row's head in query or out.
ARMLLM_INLINE int64_t row_offset(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row,
                                 int64_t token_stride, int64_t head_stride) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  const int64_t token = a.query_start_loc[tile.sequence] + row / group;
  return token * token_stride + query_head(a, tile, row) * head_stride;
}

// Logits are in units of ln 2, so that 2^x stands for exp(x).
inline constexpr double kLog2E = 1.4426950408889634;
ARMLLM_INLINE float logit_scale(const PagedAttentionArgs& a) {
  return static_cast<float>(static_cast<double>(a.scale) * kLog2E);
}

// 2^(m - base), where m may be -infinity, and base too if m is.
ARMLLM_INLINE float rescale(float m, float base) {
  if (m == -INFINITY) return 0.0f;
  return reduce_max(power_of_two(splat(m - base), 0.0f));
}
// The same of bases, which are integers or infinite: nothing but an exponent, and no branch to guess.
ARMLLM_INLINE float rescale_base(float m, float base) {
  const float below = m - base, n = below > -127.0f ? below : -127.0f;  // a NaN of infinities too
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

// Several vectors at a time, each with its own running result, hide the latency of what is done to each.
ARMLLM_INLINE float largest_of(const float* x, int64_t n) {
  Vf a = splat(-INFINITY), b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    a = max(a, load(x + i));
    b = max(b, load(x + i + kLanes));
    c = max(c, load(x + i + 2 * kLanes));
    d = max(d, load(x + i + 3 * kLanes));
  }
  for (; i < n; i += kLanes) a = max(a, load(x + i));
  return reduce_max(max(max(a, b), max(c, d)));
}

// x = 2^(x - base); returns the sum.
ARMLLM_INLINE float exponentials(float* x, int64_t n, float base) {
  auto total = splat_many(0.0f);
  Vf rest = zero();
  int64_t i = 0;
  for (; i + kMany * kLanes <= n; i += kMany * kLanes) {
    ARMLLM_LOOP("exponentials", kMany);
    const auto p = power_of_two(load_many(x + i), base);
    store_many(x + i, p);
    total = add(total, p);
  }
  for (; i < n; i += kLanes) {
    const Vf p = power_of_two(load(x + i), base);
    store(x + i, p);
    rest = add(rest, p);
  }
  return reduce_add(add(sum_of(total), rest));
}

// Soft cap and ALiBi, on the logits of `padded` keys from position `begin` on.
ARMLLM_INLINE void adjust_logits(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row,
                                 int64_t begin, int64_t padded, float* logits) {
  if (a.logit_soft_cap != 0) {
    const double unit = static_cast<double>(a.logit_soft_cap) * kLog2E;
    const Vf cap = splat(static_cast<float>(unit)), inverse = splat(static_cast<float>(1 / unit));
    for (int64_t i = 0; i < padded; i += kLanes) {
      store(logits + i, mul(cap, tanh(mul(load(logits + i), inverse))));
    }
  }
  if (a.alibi_slopes != nullptr) {
    const double unit = static_cast<double>(a.alibi_slopes[query_head(a, tile, row)]) * kLog2E;
    const Vf slope = splat(static_cast<float>(unit)), lane = lane_numbers();
    const auto first = static_cast<float>(begin - position_of(a, tile, row));
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Vf distance = add(lane, splat(first + static_cast<float>(i)));
      store(logits + i, fma(slope, distance, load(logits + i)));
    }
  }
}

// Lanes outside [begin, end) become -infinity.
ARMLLM_INLINE Vf keep_range(Vf x, int64_t begin, int64_t end) {
  const Vf lane = lane_numbers(), nothing = splat(-INFINITY);
  const Vf below_end = where_less(lane, splat(static_cast<float>(end)), x, nothing);
  return where_less(lane, splat(static_cast<float>(begin)), nothing, below_end);
}

// Masks what is not in `seen` of logits[0, padded) (a multiple of kLanes); updates base, to an integer, the
// last one or the first that is not below any logit. Returns the factor for what was summed before, a power
// of two.
ARMLLM_INLINE float mask_and_rebase(float* logits, KeyRange seen, int64_t padded, float& base) {
  if (seen.first >= seen.last) {
    for (int64_t i = 0; i < padded; i += kLanes) store(logits + i, splat(-INFINITY));
    return 1.0f;
  }
  for (int64_t i = 0; i < seen.first; i += kLanes) {
    store(logits + i, keep_range(load(logits + i), seen.first - i, seen.last - i));
  }
  for (int64_t i = seen.last / kLanes * kLanes; i < padded; i += kLanes) {
    store(logits + i, keep_range(load(logits + i), seen.first - i, seen.last - i));
  }
  const float highest = ceilf(largest_of(logits, padded));
  const float now = highest > base ? highest : base;
  const float factor = rescale_base(base, now);
  base = now;
  return factor;
}

// logits[0, padded) become 2^(logit - base); returns their sum.
ARMLLM_INLINE float weights_of_row(float* logits, int64_t padded, float base) {
  if (fabsf(base) <= 0x1p21f) return exponentials(logits, padded, base);
  if (base > -INFINITY) {
    for (int64_t i = 0; i < padded; i += kLanes) store(logits + i, sub(load(logits + i), splat(base)));
  }
  return exponentials(logits, padded, 0.0f);
}

ARMLLM_INLINE void attention_merge(const PagedAttentionArgs& a, const AttentionTile& tile,
                                   const AttentionState& into, const AttentionState& next) {
  const int64_t head_dim = a.shape.head_dim;
  for (int64_t r = 0; r < tile.row_end - tile.row_begin; ++r) {
    const float base = next.base[r] > into.base[r] ? next.base[r] : into.base[r];
    const float mine = rescale_base(into.base[r], base), theirs = rescale_base(next.base[r], base);
    into.base[r] = base;
    into.sum[r] = into.sum[r] * mine + next.sum[r] * theirs;
    float* x = into.values + r * head_dim;
    const float* y = next.values + r * head_dim;
    const Vf f = splat(mine), g = splat(theirs);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(x + d, fma(load(y + d), g, mul(load(x + d), f)));
    if (d < head_dim) {
      const int64_t n = head_dim - d;
      store_first(x + d, fma(load_first(y + d, n), g, mul(load_first(x + d, n), f)), n);
    }
  }
}

// Where the block of a token begins, for the tile's head.
ARMLLM_INLINE const char* block_of(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t token) {
  const int32_t* blocks = a.block_tables + tile.sequence * a.block_table_stride;
  return static_cast<const char*>(a.cache) + tile.kv_head * a.layout.head_stride_bytes +
         blocks[token / a.shape.block_size] * a.layout.block_bytes;
}

// Whether sums have a loop of their own: the ways to the largest logit and to a sum are long, and rows hide
// them. With SVE, clang orders the loop over the values of one row worse then (A64FX).
#if defined(ARMLLM_SVE_LANES)
inline constexpr bool kSumsApart = false;
#else
inline constexpr bool kSumsApart = true;
#endif

// One split, `chunk` keys at a time: fill(begin, n) writes the rows' logits of the keys [begin, begin + n),
// which become weights, zero up to a multiple of `padding`; add(begin, n) adds what they weigh to the values,
// after these have been multiplied by `factor`.
template <int64_t chunk, int64_t padding, class Fill, class Add>
ARMLLM_INLINE void online_softmax(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                  const AttentionState& state, float* logits, float* factor, const Fill& fill,
                                  const Add& add) {
  const int64_t rows = tile.row_end - tile.row_begin, end = split_end(a, tile, split);
  int64_t padded = 0;
  const auto add_weights = [&](int64_t r) ARMLLM_LAMBDA {
    state.sum[r] = state.sum[r] * factor[r] + weights_of_row(logits + r * chunk, padded, state.base[r]);
  };
  for (int64_t r = 0; r < rows; ++r) {
    state.base[r] = -INFINITY;
    state.sum[r] = 0;
  }
  for (int64_t begin = split_begin(a, tile, split); begin < end; begin += chunk) {
    const int64_t n = end - begin < chunk ? end - begin : chunk;
    padded = (n + padding - 1) / padding * padding;
    fill(begin, n);
    const KeyRange common = seen_by_all(a, tile, begin, n);
    const bool see_same = rows == 1 || (common.first == 0 && common.last == n);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = tile.row_begin + r;
      adjust_logits(a, tile, row, begin, padded, logits + r * chunk);
      const KeyRange seen = see_same ? common : seen_by(a, tile, row, begin, n);
      factor[r] = mask_and_rebase(logits + r * chunk, seen, padded, state.base[r]);
      if constexpr (!kSumsApart) add_weights(r);
    }
    if constexpr (kSumsApart) {
      for (int64_t r = 0; r < rows; ++r) add_weights(r);
    }
    add(begin, n);
  }
}

template <class T>
ARMLLM_INLINE void attention_finish(const PagedAttentionArgs& a, const AttentionTile& tile,
                                    const AttentionState& state) {
  const int64_t head_dim = a.shape.head_dim;
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const int64_t r = row - tile.row_begin;
    float factor = 1.0f / state.sum[r];
    if (a.sinks != nullptr) {
      const double unit = static_cast<double>(a.sinks[query_head(a, tile, row)]) * kLog2E;
      const auto sink = static_cast<float>(unit);
      const float base = sink > state.base[r] ? ceilf(sink) : state.base[r];
      const float rescaled = rescale_base(state.base[r], base);
      factor = rescaled / (state.sum[r] * rescaled + rescale(sink, base));
    }
    const Vf scale = splat(factor);
    const float* x = state.values + r * head_dim;
    T* out = static_cast<T*>(a.out) + row_offset(a, tile, row, a.out_token_stride, a.out_head_stride);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + d, mul(load(x + d), scale));
    if (d < head_dim) store_first(out + d, mul(load_first(x + d, head_dim - d), scale), head_dim - d);
  }
}
