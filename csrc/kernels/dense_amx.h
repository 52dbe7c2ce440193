// dense.h for bfloat16 with the tiles of AMX (amx_tiles.h): 16 rows of weights, as they
// lie, by 16 rows of activations, 32 elements of each at a time. The activations lie in pairs of elements,
// and the sums of a tile come out one column of the result after another. TDPBF16PS takes subnormal numbers
// for zero.

#pragma once

#include "kernels/amx_tiles.h"
#include "kernels/dense.h"

namespace dense_amx {

inline constexpr int64_t kTileRows = 2 * kBlock, kColumns = 4 * kBlock, kChunk = 32;

using dense::features_together;
using dense::kPanelsOfTile;

ARMLLM_INLINE int64_t padded_features(const WeightShape& s) {
  return (s.in_features + kChunk - 1) / kChunk * kChunk;
}
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
}
ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
  return rows * padded_features(s) * static_cast<int64_t>(sizeof(bfloat16));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
ARMLLM_INLINE int64_t rows_of_block(const MatmulArgs& a, int64_t first_row) {
  return a.rows - first_row < kBlock ? a.rows - first_row : kBlock;
}

// 32 elements as bfloat16, the first n of them read, the others zero.
ARMLLM_INLINE __m512i load_chunk(const bfloat16* p, int64_t n) {
  if (n >= kChunk) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16((1u << n) - 1, p);
}
ARMLLM_INLINE __m512i load_chunk(const float* p, int64_t n) {
  const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n), p);
  const __m512 high = n > 16 ? _mm512_maskz_loadu_ps(first_lanes(n - 16), p + 16) : _mm512_setzero_ps();
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Rows become columns.
ARMLLM_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  ARMLLM_UNROLL for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                  d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  ARMLLM_UNROLL for (int i = 0; i < 4;
                     ++i) {  // t[4 g + i]: columns i, i + 4, i + 8, i + 12 of rows 4 g to 4 g + 3
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88),
                  b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88),
                  d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// Block by block of 16 rows [features / 2, rows of the block, 2].
template <class T, class RowAt>
ARMLLM_INLINE void put(const MatmulArgs& a, int64_t begin, int64_t end, const RowAt& row_at) {
  const int64_t n = a.shape.in_features;
  for (int64_t row = begin; row < end;) {
    const int64_t first = row / kBlock * kBlock, rows = rows_of_block(a, first);
    bfloat16* to = static_cast<bfloat16*>(a.activations) + first * padded_features(a.shape);
    if (row == first && end - row >= kBlock) {
      const T* x[16];
      for (int i = 0; i < 16; ++i) x[i] = row_at(row + i);
      for (int64_t k = 0; k < n; k += kChunk, to += 16 * kChunk) {
        __m512i r[16];
        ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
          r[i] = load_chunk(x[i] + k, n - k);
        transpose(r);
        ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
          _mm512_storeu_si512(to + i * kChunk, r[i]);
      }
      row += 16;
    } else {
      const T* x = row_at(row);
      to += 2 * (row - first);
      for (int64_t k = 0; k < n; k += kChunk, to += rows * kChunk) {
        uint32_t pairs[16];
        _mm512_storeu_si512(pairs, load_chunk(x + k, n - k));
        for (int64_t i = 0; i < 16; ++i) memcpy(to + 2 * i * rows, pairs + i, 4);
      }
      ++row;
    }
  }
}
template <class T>
ARMLLM_INLINE void put_rows(const MatmulArgs& a, int64_t begin, int64_t end) {
  const auto put_of = [&](auto zero) ARMLLM_LAMBDA {
    using X = decltype(zero);
    put<X>(a, begin, end,
           [&](int64_t r) ARMLLM_LAMBDA { return static_cast<const X*>(a.x) + r * a.x_stride; });
  };
  if (a.float_rows) {
    put_of(float{});
  } else {
    put_of(T{});
  }
}
template <class T>
ARMLLM_INLINE void gather(const MatmulArgs& a, const GatherArgs& from, int64_t begin, int64_t end) {
  put<T>(a, begin, end, [&](int64_t r) ARMLLM_LAMBDA {
    return static_cast<const T*>(from.rows) + from.ids[r] * from.stride;
  });
}

// What tiles hold: 0 to 3 sums [16 rows of weights, rows of activations], 4 activations, 5 to 7 weights; with
// `more` rows of a second block of activations 1 and 3 are their sums and 5 is theirs.
ARMLLM_INLINE void configure(int64_t weight_rows, int64_t rows, int64_t more = 0) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    const bool is_activations = i == 4 || (more != 0 && i == 5), is_second = more != 0 && i % 2 == 1;
    shapes.rows[i] = static_cast<uint8_t>(is_activations ? 16 : weight_rows);
    shapes.column_bytes[i] =
        static_cast<uint16_t>(i > 4 && !is_activations ? 64 : 4 * (is_second ? more : rows));
  }
  load_shapes(shapes);
}

// Weights' elements behind the last whole chunk, with zeros after them. GCC 12 doesn't know that _tile_loadd
// reads memory.
ARMLLM_INLINE void copy_rest(bfloat16* to, const bfloat16* w, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) _mm512_storeu_si512(to + r * kChunk, load_chunk(w + r * stride, n));
  __asm__ volatile("" ::: "memory");
}

// Calls step(weights, elements between their rows, activations) for each chunk; what is behind the last whole
// one is copied first.
template <class Step>
ARMLLM_INLINE void for_chunks(const bfloat16* w, int64_t weight_rows, int64_t n, int64_t rows,
                              const bfloat16* x, const Step& step) {
  int64_t k = 0;
  for (; k + kChunk <= n; k += kChunk, x += kChunk * rows) step(w + k, n, x);
  if (k < n) {
    alignas(64) bfloat16 rest[kColumns * kChunk];
    copy_rest(rest, w + k, n, weight_rows, n - k);
    step(static_cast<const bfloat16*>(rest), kChunk, x);
  }
}

// sums[4][16, 16]: 64 rows of weights by one block of activations.
ARMLLM_INLINE void multiply_four_by_one(const bfloat16* w, int64_t n, const bfloat16* x, int64_t rows,
                                        float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for_chunks(w, kColumns, n, rows, x,
             [&](const bfloat16* weights, int64_t stride, const bfloat16* p) ARMLLM_LAMBDA {
               _tile_loadd(4, p, 4 * rows);
               _tile_loadd(5, weights, 2 * stride);
               _tile_dpbf16ps(0, 5, 4);
               _tile_loadd(6, weights + kBlock * stride, 2 * stride);
               _tile_dpbf16ps(1, 6, 4);
               _tile_loadd(7, weights + 2 * kBlock * stride, 2 * stride);
               _tile_dpbf16ps(2, 7, 4);
               _tile_loadd(5, weights + 3 * kBlock * stride, 2 * stride);
               _tile_dpbf16ps(3, 5, 4);
             });
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}
// sums[4][16, 16]: 32 rows of weights by two blocks of activations, 16 rows and `more`. `next` are weights to
// be brought nearer for the next call, or null.
ARMLLM_INLINE void multiply_two_by_two(const bfloat16* w, int64_t n, const bfloat16* x,
                                       const bfloat16* second, int64_t more, const bfloat16* next,
                                       float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for_chunks(w, 2 * kBlock, n, kBlock, x,
             [&](const bfloat16* weights, int64_t stride, const bfloat16* p) ARMLLM_LAMBDA {
               _tile_loadd(4, p, 64);
               _tile_loadd(6, weights, 2 * stride);
               _tile_dpbf16ps(0, 6, 4);
               _tile_loadd(5, second, 4 * more);
               _tile_dpbf16ps(1, 6, 5);
               _tile_loadd(7, weights + kBlock * stride, 2 * stride);
               _tile_dpbf16ps(2, 7, 4);
               _tile_dpbf16ps(3, 7, 5);
               second += kChunk * more;
               if (next != nullptr) {
                 for (int64_t r = 0; r < 2 * kBlock; ++r) _mm_prefetch(next + r * n, _MM_HINT_T1);
                 next += kChunk;
               }
             });
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  _tile_stored(2, sums + 512, 64);
  _tile_stored(3, sums + 768, 64);
}
// sums[16, 16]: the `weight_rows` that the tiles are configured for, 16 at most, by one block of activations.
ARMLLM_INLINE void multiply_one_by_one(const bfloat16* w, int64_t weight_rows, int64_t n, const bfloat16* x,
                                       int64_t rows, float* sums) {
  _tile_zero(0);
  for_chunks(w, weight_rows, n, rows, x,
             [&](const bfloat16* weights, int64_t stride, const bfloat16* p) ARMLLM_LAMBDA {
               _tile_loadd(4, p, 4 * rows);
               _tile_loadd(5, weights, 2 * stride);
               _tile_dpbf16ps(0, 5, 4);
             });
  _tile_stored(0, sums, 64);
}

ARMLLM_INLINE __m512 one_of_bias(const MatmulArgs& a, int64_t column) {
  const uint32_t bits = static_cast<const bfloat16*>(a.bias)[column].bits;
  return (__m512)_mm512_set1_epi32(static_cast<int>(bits << 16));
}
// Sums of a block of activations by 32 rows of weights, the first 16 and the others, become results in up to
// 32 columns.
ARMLLM_INLINE void finish(const MatmulArgs& a, int64_t first_row, int64_t rows, int64_t column,
                          int64_t columns, const float* first, const float* others) {
  __m512i r[16];
  if (a.float_rows) {
    for (int64_t c = 0; c < columns; c += kBlock) {
      ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
        r[i] = _mm512_load_si512((c == 0 ? first : others) + 16 * i);
      transpose(r);
      for (int64_t i = 0; i < rows; ++i) {
        float* out = static_cast<float*>(a.out) + (first_row + i) * a.out_stride + column + c;
        _mm512_mask_storeu_ps(out, first_lanes(columns - c), (__m512)r[i]);
      }
    }
    return;
  }
  // Two columns' numbers become the halves of one, so that both are transposed at once.
  ARMLLM_UNROLL for (int i = 0; i < 16; ++i) {
    const float* pair = (i < 8 ? first : others - 256) + 32 * i;
    __m512 even = _mm512_load_ps(pair), odd = _mm512_load_ps(pair + 16);
    if (a.bias != nullptr) {
      if (2 * i < columns) even = _mm512_add_ps(even, one_of_bias(a, column + 2 * i));
      if (2 * i + 1 < columns) odd = _mm512_add_ps(odd, one_of_bias(a, column + 2 * i + 1));
    }
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
    const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
    r[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
  transpose(r);
  const __mmask32 there = columns >= 32 ? 0xffffffff : (1u << columns) - 1;
  for (int64_t i = 0; i < rows; ++i) {
    _mm512_mask_storeu_epi16(static_cast<bfloat16*>(a.out) + (first_row + i) * a.out_stride + column, there,
                             r[i]);
  }
}

// Sums that are not results yet: of 64 rows of weights by one block of activations, or of 32 by two.
struct Sums {
  const float* at = nullptr;
  int64_t row = 0, rows = 0, more = 0, column = 0;
};
ARMLLM_INLINE void finish(const MatmulArgs& a, const Sums& s) {
  if (s.at == nullptr) return;
  if (s.more == 0) {
    finish(a, s.row, s.rows, s.column, 32, s.at, s.at + 256);
    finish(a, s.row, s.rows, s.column + 32, 32, s.at + 512, s.at + 768);
  } else {
    finish(a, s.row, kBlock, s.column, 32, s.at, s.at + 512);
    finish(a, s.row + kBlock, s.more, s.column, 32, s.at + 256, s.at + 768);
  }
}

template <class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  const int64_t n = a.shape.in_features, padded = padded_features(a.shape);
  // The last sums are finished while the tiles compute the next ones.
  alignas(64) float memory[2][4 * 256] = {};
  float* sums = memory[0];
  Sums last;
  const auto begin_next = [&](const Sums& current) ARMLLM_LAMBDA {
    finish(a, last);
    last = current;
    sums = memory[sums == memory[0] ? 1 : 0];
  };
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t row = tile * kTileRows, rows = rows_of_block(a, row);
    const int64_t more = row + kBlock >= a.rows ? 0 : rows_of_block(a, row + kBlock);
    const T* x = static_cast<const T*>(a.activations) + row * padded;
    const T* second = x + kBlock * padded;
    configure(kBlock, rows, more);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const int64_t column = panel * kColumns, left = a.shape.out_features - column;
      const T* w = static_cast<const T*>(a.weight) + column * n;
      if (left >= kColumns && more == 0) {
        multiply_four_by_one(w, n, x, rows, sums);
        begin_next({sums, row, rows, 0, column});
        continue;
      }
      if (left >= kColumns) {
        for (int64_t c = 0; c < kColumns; c += 32) {
          const bool is_first_read = tile == tile_begin && left - c >= 64;
          const T* next = is_first_read ? w + (c + 32) * n : nullptr;
          multiply_two_by_two(w + c * n, n, x, second, more, next, sums);
          begin_next({sums, row, kBlock, more, column + c});
        }
        continue;
      }
      for (int64_t c = 0; c < left; c += kBlock) {  // in the last panel of all
        const int64_t columns = left - c < kBlock ? left - c : kBlock;
        configure(columns, rows);
        multiply_one_by_one(w + c * n, columns, n, x, rows, sums);
        finish(a, row, rows, column + c, columns, sums, sums + 256);
        if (more == 0) continue;
        configure(columns, more);
        multiply_one_by_one(w + c * n, columns, n, second, more, sums);
        finish(a, row + kBlock, more, column + c, columns, sums, sums + 256);
      }
    }
  }
  _tile_release();
  finish(a, last);
}

}  // namespace dense_amx
