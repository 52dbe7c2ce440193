// Activations as BFMMLA takes them: two rows by four elements in a vector. Tile by tile of `kRows` rows
// [features / 8, pairs of rows, 2 halves of 8 features, 2 rows, 4]; the odd last row is paired with zeros.

#pragma once

#include "simd/primitives.h"

template <int64_t kRows>
struct BfmmlaRows {
  static constexpr int64_t kChunk = 8, kPanelsOfTile = 1;

  template <class>
  constexpr ARMLLM_INLINE int64_t features_together() {
    return 4;
  }

  ARMLLM_INLINE int64_t padded_features(const WeightShape& s) {
    return (s.in_features + kChunk - 1) / kChunk * kChunk;
  }
  ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
    return (rows + 1) / 2 * 2 * padded_features(s) * static_cast<int64_t>(sizeof(bfloat16));
  }
  ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kRows - 1) / kRows; }
  ARMLLM_INLINE const bfloat16* tile(const MatmulArgs& a, int64_t first_row) {
    return static_cast<const bfloat16*>(a.activations) + first_row * padded_features(a.shape);
  }

  ARMLLM_INLINE bfloat16* place_of(const MatmulArgs& a, int64_t row, int64_t& step) {
    const int64_t first = row / kRows * kRows, rest = (a.rows - first + 1) / 2 * 2;
    step = (rest < kRows ? rest : kRows) * kChunk;
    return static_cast<bfloat16*>(a.activations) + first * padded_features(a.shape) +
           (row - first) / 2 * 2 * kChunk + row % 2 * 4;
  }
  template <class T>
  ARMLLM_INLINE void put_row(const MatmulArgs& a, const T* x, int64_t row) {
    int64_t step;
    bfloat16* to = place_of(a, row, step);
    const int64_t n = a.shape.in_features;
    for (int64_t k = 0; k < n; k += kChunk, to += step) {
      for (int64_t i = 0; i < kChunk; i += kLanes) {
        const int64_t there = n - k - i;
        store(to + 2 * i, there >= kLanes ? load(x + k + i)
                          : there > 0     ? load_first(x + k + i, there)
                                          : zero());
      }
    }
  }
  ARMLLM_INLINE void pair_with_zeros(const MatmulArgs& a) {
    int64_t step;
    bfloat16* to = place_of(a, a.rows, step);
    for (int64_t k = 0; k < a.shape.in_features; k += kChunk, to += step) {
      memset(to, 0, 4 * sizeof(bfloat16));
      memset(to + kChunk, 0, 4 * sizeof(bfloat16));
    }
  }
  template <class T>
  ARMLLM_INLINE void put_rows(const MatmulArgs& a, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (a.float_rows) {
        put_row(a, static_cast<const float*>(a.x) + r * a.x_stride, r);
      } else {
        put_row(a, static_cast<const T*>(a.x) + r * a.x_stride, r);
      }
    }
    if (end == a.rows && end % 2 != 0) pair_with_zeros(a);
  }
  template <class T>
  ARMLLM_INLINE void gather(const MatmulArgs& a, const GatherArgs& from, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      put_row(a, static_cast<const T*>(from.rows) + from.ids[r] * from.stride, r);
    }
    if (end == a.rows && end % 2 != 0) pair_with_zeros(a);
  }
};

ARMLLM_INLINE bfloat16x8_t operand(const bfloat16* p) { return vreinterpretq_bf16_u16(vld1q_u16(&p->bits)); }
