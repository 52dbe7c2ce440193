// Attention on an int8 cache: keys and values are vectors of integers, each with its scale, and all
// products are sums of integers, exact in int32.
//
//   logit = (q . k) * query scale * key scale       the query's head vectors are rounded to int8
//   value = sum of weights * v                      a weight is exp(logit - largest) * value scale
//
// Eight bits are too few for weights: one key that takes half of the probability would round those of a
// thousand others to 0. So a row's weights of a chunk become integers up to 127 * 128 of two digits, to base
// 128, and each digit is a row of int8. A weight is off by 2^-15 of the chunk's largest: over 64 keys at most
// 2^-9 of it, what rounding to bfloat16 costs.
//
// A block of a head: keys, values, a float per token for the keys, a float per token for the values. Keys are
// [block_size / 4][head_dim / 8] cells of four tokens by eight elements, values [block_size / 8][head_dim /
// 4] cells of four elements by eight tokens: either way the sum runs along a cell's eight.

#pragma once

#include "kernels/int8_products.h"
#include "kernels/kv_slots.h"
#include "kernels/quantize.h"
#include "kernels/softmax.h"

namespace int8_cache {

inline constexpr int64_t kChunk = 64, kTileRows = 48, kMaxHeadDim = 1024;
inline constexpr float kLargestWeight = 127 * 128;

ARMLLM_INLINE void kv_cache_layout(const KvCacheShape& shape, KvCacheLayout& layout) {
  layout.value_offset_bytes = shape.block_size * shape.head_dim;
  layout.scale_offset_bytes = 2 * layout.value_offset_bytes;
  layout.head_stride_bytes =
      layout.scale_offset_bytes + 2 * shape.block_size * static_cast<int64_t>(sizeof(float));
  layout.block_bytes = shape.num_kv_heads * layout.head_stride_bytes;
}

// Byte of element k of column c in a cell.
ARMLLM_INLINE int64_t place(int64_t c, int64_t k) { return k / kRun * 4 * kRun + c * kRun + k % kRun; }

template <class T>
ARMLLM_INLINE float quantize(const T* x, int64_t n, int8_t* q) {
  const RowScale row = row_scale(x, n, false);
  quantize_row(x, n, row, q);
  return row.scale;
}

template <class T>
ARMLLM_INLINE void write_kv_cache(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  int8_t q[kMaxHeadDim];
  const auto write = [&](char* base, int64_t offset, const T* key, const T* value) ARMLLM_LAMBDA {
    float* scales = reinterpret_cast<float*>(base + a.layout.scale_offset_bytes) + offset;

    scales[0] = quantize(key, head_dim, q);
    int8_t* keys = reinterpret_cast<int8_t*>(base) + offset / 4 * 4 * head_dim;
    for (int64_t d = 0; d < head_dim; d += kRun) {
      memcpy(keys + d / 8 * kCell + place(offset % 4, d % 8), q + d, static_cast<size_t>(kRun));
    }

    scales[block_size] = quantize(value, head_dim, q);
    int8_t* values =
        reinterpret_cast<int8_t*>(base + a.layout.value_offset_bytes) + offset / 8 * 8 * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) values[d / 4 * kCell + place(d % 4, offset % 8)] = q[d];
  };
  for_each_slot<T>(a, begin, end, write);
}

struct Scratch {
  float* logits;        // [kTileRows, kChunk]
  float* factor;        // [kTileRows]
  float* query_scale;   // [kTileRows], times the logits' scale
  float* weight_scale;  // [kTileRows]
  int8_t* query;        // [kTileRows / 2, head_dim / 8, 2, 8]
  int8_t* weights;      // [kTileRows, kChunk / 8, 2, 8], two digits
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  const int64_t floats = kTileRows * (kChunk + 3), bytes = kTileRows * (shape.head_dim + 2 * kChunk);
  return (floats * static_cast<int64_t>(sizeof(float)) + bytes + 63) / 64 * 64;
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  Scratch s;
  s.logits = static_cast<float*>(memory);
  s.factor = s.logits + kTileRows * kChunk;
  s.query_scale = s.factor + kTileRows;
  s.weight_scale = s.query_scale + kTileRows;
  s.query = reinterpret_cast<int8_t*>(s.weight_scale + kTileRows);
  s.weights = s.query + kTileRows * shape.head_dim;
  return s;
}

// The query's rows in pairs; a missing second row is zero.
template <class T>
ARMLLM_INLINE void quantize_query(const PagedAttentionArgs& a, const AttentionTile& tile, const Scratch& s) {
  const int64_t head_dim = a.shape.head_dim, rows = tile.row_end - tile.row_begin;
  int8_t q[kMaxHeadDim];
  for (int64_t r = 0; r < (rows + 1) / 2 * 2; ++r) {
    if (r < rows) {
      const T* x = static_cast<const T*>(a.query) +
                   row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
      s.query_scale[r] = quantize(x, head_dim, q) * logit_scale(a);
    } else {
      s.query_scale[r] = 0;
      memset(q, 0, static_cast<size_t>(head_dim));
    }
    int8_t* out = s.query + r / 2 * 2 * head_dim + r % 2 * 8;
    for (int64_t d = 0; d < head_dim; d += 8) memcpy(out + 2 * d, q + d, 8);
  }
}

// Of one pair of rows and C cells of four keys, four cells to a pointer of scales.
template <int C>
ARMLLM_INLINE void store_logits(const Scratch& s, int64_t pair, const Sums (&sums)[C],
                                const float* const* scales, float* logits) {
  const float* scale = s.query_scale + 2 * pair;
  float* out = logits + 2 * pair * kChunk;
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    const Floats k = load_floats(scales[c / 4] + c % 4 * 4);
    store_floats(out + 4 * c, to_floats(upper(sums[c])) * splat_floats(scale[0]) * k);
    store_floats(out + kChunk + 4 * c, to_floats(lower(sums[c])) * splat_floats(scale[1]) * k);
  }
}

// logits of P pairs of rows and C cells of four keys.
template <int P, int C>
ARMLLM_INLINE void logits_tile(const Scratch& s, int64_t pair, const int8_t* keys, const float* scales,
                               int64_t head_dim, float* logits) {
  Sums sums[P][C];
  ARMLLM_UNROLL for (int i = 0; i < P * C; ++i)
    sums[i / C][i % C] = no_sums();
  const int8_t* query = s.query + pair * 2 * head_dim;
  for (int64_t step = 0; step < head_dim / 8; ++step) {
    ARMLLM_LOOP("logits", 2 * P);
    add_step(sums, query + 16 * step, 2 * head_dim, keys + kCell * step, 4 * head_dim);
  }
  ARMLLM_UNROLL for (int p = 0; p < P; ++p)
    store_logits(s, pair + p, sums[p], &scales, logits);
}

// The logits of 16 keys of one block; P counts down to the number of pairs that are left.
template <int P>
ARMLLM_INLINE void rows_logits(const Scratch& s, int64_t pair, int64_t pairs, const int8_t* keys,
                               const float* scales, int64_t head_dim, float* logits) {
  for (; pairs - pair >= P; pair += P) {
    for (int64_t t = 0; t < 16; t += 4 * kCells) {
      logits_tile<P, kCells>(s, pair, keys + t * head_dim, scales + t, head_dim, logits + t);
    }
  }
  if constexpr (P > 1) {
    if (pair < pairs) rows_logits<P - 1>(s, pair, pairs, keys, scales, head_dim, logits);
  }
}

// Of one row, a pair of digits, and C cells of four elements: values = values * factor + what was summed.
template <int C>
ARMLLM_INLINE void store_values(const Scratch& s, int64_t row, const Sums (&sums)[C], int64_t d,
                                int64_t head_dim, float* values) {
  const Floats factor = splat_floats(s.factor[row]), scale = splat_floats(s.weight_scale[row]);
  float* out = values + row * head_dim + d;
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    const Ints sum = upper(sums[c]) * 128 + lower(sums[c]);
    store_floats(out + 4 * c, multiply_add(to_floats(sum), scale, load_floats(out + 4 * c) * factor));
  }
}

// values = values * factor + weights . values of the cache, for R rows (each a pair of digits) and C cells of
// four elements.
template <int R, int C>
ARMLLM_INLINE void values_tile(const Scratch& s, int64_t row, const int8_t* const* groups, int64_t num_groups,
                               int64_t d, int64_t head_dim, float* values) {
  Sums sums[R][C];
  ARMLLM_UNROLL for (int i = 0; i < R * C; ++i)
    sums[i / C][i % C] = no_sums();
  const int8_t* weights = s.weights + row * 2 * kChunk;
  for (int64_t g = 0; g < num_groups; ++g) {
    ARMLLM_LOOP("values", R);
    add_step(sums, weights + 16 * g, 2 * kChunk, groups[g] + 8 * d, kCell);
  }
  ARMLLM_UNROLL for (int r = 0; r < R; ++r)
    store_values(s, row + r, sums[r], d, head_dim, values);
}

#if defined(ARMLLM_INT8_SMMLA)
// The logits of two times sixteen keys.
ARMLLM_INLINE void logits_of_pair(const Scratch& s, const int8_t* const* keys, const float* const* scales,
                                  int64_t head_dim, float* logits) {
  Sums sums[kCellsOfOne];
  const int8_t* cell[kCellsOfOne];
  ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c) {
    sums[c] = no_sums();
    cell[c] = keys[c / 4] + c % 4 * 4 * head_dim;
  }
  const int8_t* query = s.query;
  for (const int8_t* end = query + 2 * head_dim; query < end; query += 16) {
    ARMLLM_LOOP("logits", 2);
    const int8x16_t rows = vld1q_s8(query);
    ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c)
      add_next_cell(sums[c], rows, cell[c]);
  }
  store_logits(s, 0, sums, scales, logits);
}

// values = values * factor + weights . values of the cache for one row. Groups of eight tokens are two by two
// side by side, with weights of 0 behind the last token.
ARMLLM_INLINE void values_of_row(const Scratch& s, int64_t row, const int8_t* const* groups,
                                 int64_t num_groups, int64_t d, int64_t head_dim, float* values) {
  Sums sums[kCellsOfOne];
  ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c)
    sums[c] = no_sums();
  const int8_t *weights = s.weights + row * 2 * kChunk, *next = groups[0];
  for (int64_t g = 0; g < num_groups; g += 2) {
    ARMLLM_LOOP("values", 1);
    const int8_t* cells = next + 8 * d;
    next = groups[g + 2];
    const int8x16_t first = vld1q_s8(weights + 16 * g), second = vld1q_s8(weights + 16 * g + 16);
    add_cells(sums, first, cells);
    add_cells(sums, second, cells + 8 * head_dim);
  }
  store_values(s, row, sums, d, head_dim, values);
}
#endif

template <int R>
ARMLLM_INLINE void rows_values(const Scratch& s, int64_t row, int64_t rows, const int8_t* const* groups,
                               int64_t num_groups, int64_t head_dim, float* values) {
  for (; rows - row >= R; row += R) {
    int64_t d = 0;
#if defined(ARMLLM_INT8_SMMLA)
    if constexpr (R == 1) {
      for (; d + 4 * kCellsOfOne <= head_dim; d += 4 * kCellsOfOne) {
        values_of_row(s, row, groups, num_groups, d, head_dim, values);
      }
    }
#endif
    for (; d + 4 * kCells <= head_dim; d += 4 * kCells) {
      values_tile<R, kCells>(s, row, groups, num_groups, d, head_dim, values);
    }
    for (; d < head_dim; d += 8) values_tile<R, 2>(s, row, groups, num_groups, d, head_dim, values);
  }
  if constexpr (R > 1) {
    if (row < rows) rows_values<R - 1>(s, row, rows, groups, num_groups, head_dim, values);
  }
}

// A row's weights, n of them (a multiple of 16), as two digits. What is not finite makes the scale a NaN;
// weights of keys that the row doesn't see are 0, whatever their values' scales are.
ARMLLM_INLINE float quantize_weights(float* weights, const float* const* scales, int64_t n, int8_t* digits) {
  Vf most = zero(), poison = zero();
  for (int64_t i = 0; i < n; i += 16) {
    ARMLLM_UNROLL for (int64_t j = i; j < i + 16; j += kLanes) {
      const Vf p = load(weights + j);
      const Vf w = where_less(zero(), p, mul(p, load(scales[i / 16] + j - i)), zero());
      store(weights + j, w);
      most = max(most, w);
      poison = fma(w, zero(), poison);
    }
  }
  const float largest = reduce_max(most), none = reduce_add(poison);
  if (!(largest >= 0x1p-110f) || none != 0) {
    memset(digits, 0, static_cast<size_t>(2 * n));
    return none;
  }
  const Vf inverse = splat(kLargestWeight / largest);
  for (int64_t i = 0; i < n; i += 16) {
    ARMLLM_LOOP("digits", 16 / kLanes);
    int8_t high[16], low[16];
    ARMLLM_UNROLL for (int64_t j = 0; j < 16; j += kLanes) {
      const Vf x = mul(load(weights + i + j), inverse);
      const Vf first = sub(fma(x, splat(0x1p-7f), splat(kRounder)), splat(kRounder));
      store_bytes(high + j, first);
      store_bytes(low + j, fma(first, splat(-128.0f), x));
    }
    for (int64_t j = 0; j < 16; j += 8) {
      memcpy(digits + 2 * (i + j), high + j, 8);
      memcpy(digits + 2 * (i + j) + 8, low + j, 8);
    }
  }
  return largest / kLargestWeight;
}

// The part of a split that knows no storage type; the query has been quantized.
static ARMLLM_ENTRY void int8_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                    const AttentionState& state, const Scratch& s) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  memset(state.values, 0, static_cast<size_t>(rows * head_dim) * sizeof(float));
  const int8_t* groups[kChunk / 8 + 1] = {};  // the last is loaded in advance, and not used
  const float* scales[kChunk / 16];

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    const int8_t* keys[kChunk / 16];
    const float* key_scales[kChunk / 16];
    const int64_t sixteens = (n + 15) / 16;
    for (int64_t i = 0; i < sixteens; ++i) {
      const char* block = block_of(a, tile, begin + 16 * i);
      const int64_t offset = (begin + 16 * i) % block_size;
      key_scales[i] = reinterpret_cast<const float*>(block + a.layout.scale_offset_bytes) + offset;
      scales[i] = key_scales[i] + block_size;
      keys[i] = reinterpret_cast<const int8_t*>(block) + offset * head_dim;
      groups[2 * i] = keys[i] + a.layout.value_offset_bytes;
      groups[2 * i + 1] = groups[2 * i] + 8 * head_dim;
    }
    int64_t i = 0;
#if defined(ARMLLM_INT8_SMMLA)
    for (; rows <= 2 && i + 2 <= sixteens; i += 2) {
      logits_of_pair(s, keys + i, key_scales + i, head_dim, s.logits + 16 * i);
    }
#endif
    for (; i < sixteens; ++i) {
      rows_logits<kPairs>(s, 0, (rows + 1) / 2, keys[i], key_scales[i], head_dim, s.logits + 16 * i);
    }
  };
  const auto add = [&](int64_t, int64_t n) ARMLLM_LAMBDA {
    const int64_t padded = (n + 15) / 16 * 16;
    for (int64_t r = 0; r < rows; ++r) {
      s.weight_scale[r] = quantize_weights(s.logits + r * kChunk, scales, padded, s.weights + r * 2 * kChunk);
    }
    rows_values<kPairs>(s, 0, rows, groups, (n + 7) / 8, head_dim, state.values);
  };
  online_softmax<kChunk, 16>(a, tile, split, state, s.logits, s.factor, fill, add);
}

template <class T>
ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const Scratch s = scratch(a.shape, memory);
  quantize_query<T>(a, tile, s);
  int8_split(a, tile, split, state, s);
}

}  // namespace int8_cache
