// Attention with fused multiply-adds, for any storage type and vector length. Rows (of the query, and of
// weights) are floats, or what a target's load_quad and multiply_lane take.
//
// Per chunk of 64 keys: logits = Q K^T, softmax, values = values * factor + P V, in register tiles of M rows.
// A vector of keys (or of value elements) is multiplied by one element of a row at a time, so nothing is
// summed across lanes. The tiles give kRowTile, panel_logits and add_all_values.

#pragma once

#include "kernels/softmax.h"
#if defined(ARMLLM_SVE_LANES)
#include "kernels/attention_sve.h"
#else
#include "kernels/attention_tiles.h"
#endif

inline constexpr int64_t kTileRows = 6 * kRowTile;

struct AttentionScratch {
  float* query;        // [kTileRows, head_dim]
  float* logits;       // [kTileRows, kChunk]
  float* factor;       // [kTileRows]
  float* wide_keys;    // [head_dim, kPanel]
  float* wide_values;  // [kChunk, head_dim]
};

ARMLLM_INLINE int64_t attention_scratch_bytes(const KvCacheShape& shape) {
  const int64_t floats = kTileRows * (shape.head_dim + kChunk + 1) + shape.head_dim * (kPanel + kChunk);
  return (floats * 4 + 63) / 64 * 64;
}

ARMLLM_INLINE AttentionScratch attention_scratch(const KvCacheShape& shape, void* memory) {
  AttentionScratch s;
  s.logits = static_cast<float*>(memory);
  s.query = s.logits + kTileRows * kChunk;
  s.wide_keys = s.query + kTileRows * shape.head_dim;
  s.wide_values = s.wide_keys + kPanel * shape.head_dim;
  s.factor = s.wide_values + kChunk * shape.head_dim;
  return s;
}

template <class T>
ARMLLM_INLINE void widen_row(const T* x, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i));
  if (i < n) store_first(out + i, load_first(x + i, n - i), n - i);
}

// One panel's logits for all rows, in tiles of M; M counts down to the number of those that are left.
template <int M, class Q, class K>
ARMLLM_INLINE void rows_logits(const Q* q, int64_t rows, const K* keys, int64_t head_dim, float scale,
                               float* logits) {
  for (; rows >= M; rows -= M, q += M * head_dim, logits += M * kChunk) {
    panel_logits<M>(q, keys, head_dim, scale, logits);
  }
  if constexpr (M > 1) {
    if (rows > 0) rows_logits<M - 1>(q, rows, keys, head_dim, scale, logits);
  }
}
template <int M, class P, class K>
ARMLLM_INLINE void rows_values(const P* p, int64_t rows, const K* const* panels, int64_t n, int64_t head_dim,
                               const float* factor, float* values) {
  for (; rows >= M; rows -= M, p += M * kChunk, factor += M, values += M * head_dim) {
    add_all_values<M>(p, panels, n, head_dim, factor, values);
  }
  if constexpr (M > 1) {
    if (rows > 0) rows_values<M - 1>(p, rows, panels, n, head_dim, factor, values);
  }
}

// Whether tokens [begin, end) of the chunk hold only finite values.
template <class K>
ARMLLM_INLINE bool all_finite(const K* const* panels, int64_t begin, int64_t end, int64_t head_dim) {
  Vf sum = zero();  // 0 times anything finite is 0; else it is a NaN
  for (int64_t t = begin; t < end; ++t) {
    const K* x = panels[t / kPanel] + t % kPanel * head_dim;
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) sum = fma(load(x + d), zero(), sum);
    if (d < head_dim) sum = fma(load_first(x + d, head_dim - d), zero(), sum);
  }
  return reduce_add(sum) == 0;
}

// add_all_values for one row that must not touch what it doesn't see.
template <class K>
ARMLLM_INLINE void add_seen_values(const float* p, const K* const* panels, KeyRange seen, int64_t head_dim,
                                   float factor, float* values) {
  for (int64_t d = 0; d < head_dim; d += kLanes) {
    const int64_t n = head_dim - d < kLanes ? head_dim - d : kLanes;
    Vf acc = mul(load_first(values + d, n), splat(factor));
    for (int64_t t = seen.first; t < seen.last; ++t) {
      const K* x = panels[t / kPanel] + t % kPanel * head_dim + d;
      acc = fma(load_first(x, n), splat(p[t]), acc);
    }
    store_first(values + d, acc, n);
  }
}

// Whether the values that some row of the tile doesn't see are finite. Their weight is 0 there, which would
// make a NaN of an infinite one.
template <class K>
ARMLLM_INLINE bool unseen_are_finite(const PagedAttentionArgs& a, const AttentionTile& tile,
                                     const K* const* panels, int64_t begin, int64_t n) {
  const KeyRange common = seen_by_all(a, tile, begin, n);
  return all_finite(panels, 0, common.first, a.shape.head_dim) &&
         all_finite(panels, common.last, n, a.shape.head_dim);
}

// values = values * factor + weights . values for all rows; `p` holds the weights as they are multiplied,
// s.logits as floats.
template <class P, class K>
ARMLLM_INLINE void tile_values(const PagedAttentionArgs& a, const AttentionTile& tile,
                               const AttentionScratch& s, const P* p, const K* const* panels, int64_t begin,
                               int64_t n, float* values) {
  const int64_t rows = tile.row_end - tile.row_begin, head_dim = a.shape.head_dim;
  if (unseen_are_finite(a, tile, panels, begin, n)) {
    rows_values<kRowTile>(p, rows, panels, n, head_dim, s.factor, values);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    add_seen_values(s.logits + r * kChunk, panels, seen_by(a, tile, tile.row_begin + r, begin, n), head_dim,
                    s.factor[r], values + r * head_dim);
  }
}

ARMLLM_INLINE bool is_float(float) { return true; }
ARMLLM_INLINE bool is_float(float16) { return false; }
ARMLLM_INLINE bool is_float(bfloat16) { return false; }

template <class T>
ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  const AttentionScratch s = attention_scratch(a.shape, memory);
  for (int64_t r = 0; r < rows; ++r) {
    const T* q = static_cast<const T*>(a.query) +
                 row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
    widen_row(q, s.query + r * head_dim, head_dim);
  }
  memset(state.values, 0, static_cast<size_t>(rows * head_dim) * sizeof(float));
  // With more than one register tile of rows, a panel is converted to float once for all of them.
  const bool widen = !is_float(T{}) && rows > kRowTile;
  const T* values[kChunk / kPanel];
  const float* wide_values[kChunk / kPanel];

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    const float scale = logit_scale(a);
    const T* keys[kChunk / kPanel];
    const int64_t panels = (n + kPanel - 1) / kPanel;
    for (int64_t i = 0; i < panels; ++i) {
      const char* block = block_of(a, tile, begin + i * kPanel);
      const int64_t offset = (begin + i * kPanel) % block_size * head_dim;
      keys[i] = reinterpret_cast<const T*>(block) + offset;
      values[i] = reinterpret_cast<const T*>(block + a.layout.value_offset_bytes) + offset;
    }
    int64_t i = rows == 1 ? row_logits(s.query, keys, panels, head_dim, scale, s.logits) : 0;
    for (; i < panels; ++i) {
      const int64_t j = i * kPanel;
      if (widen) {
        widen_row(keys[i], s.wide_keys, kPanel * head_dim);
        rows_logits<kRowTile>(s.query, rows, s.wide_keys, head_dim, scale, s.logits + j);
        const int64_t tokens = n - j < kPanel ? n - j : kPanel;
        wide_values[i] = s.wide_values + j * head_dim;
        widen_row(values[i], s.wide_values + j * head_dim, tokens * head_dim);
      } else {
        rows_logits<kRowTile>(s.query, rows, keys[i], head_dim, scale, s.logits + j);
      }
    }
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    if (widen) {
      tile_values(a, tile, s, s.logits, wide_values, begin, n, state.values);
    } else {
      tile_values(a, tile, s, s.logits, values, begin, n, state.values);
    }
  };
  online_softmax<kChunk, kPanel>(a, tile, split, state, s.logits, s.factor, fill, add);
}
