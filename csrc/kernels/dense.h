// Products with floating-point weights as they lie in a checkpoint, [out_features, in_features]: each vector
// of a weight's row meets those of several rows of activations, which are float, and every product has a sum
// of its own, so that a result is the same in every tile.

#pragma once

#include "kernels/dense_tiles.h"

namespace dense {

inline constexpr int64_t kColumns = 4;
// Columns that one tile takes: AVX2 has 16 registers.
constexpr ARMLLM_INLINE int64_t columns_beside(int rows) {
  return ARMLLM_LANES == 8 && rows > 2 ? 2 : kColumns;
}

template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
}

template <class T, int rows>
ARMLLM_INLINE void multiply_tile(const MatmulArgs& a, int64_t first_row, int64_t column) {
  const int64_t n = a.shape.in_features, stride = row_floats(a.shape), last = a.shape.out_features - 1;
  const float* x = static_cast<const float*>(a.activations) + first_row * stride;
  constexpr int64_t kBeside = columns_beside(rows);
  const T* w[kBeside];
  Vf sums[kBeside][rows];
  ARMLLM_UNROLL for (int64_t c = 0; c < kBeside; ++c) {
    w[c] = static_cast<const T*>(a.weight) + (column + c < last ? column + c : last) * n;
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
      sums[c][r] = zero();
  }
  const auto add_products = [&](int64_t k, const Vf(&weights)[kBeside]) __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      const Vf row = load(x + r * stride + k);
      ARMLLM_UNROLL for (int64_t c = 0; c < kBeside; ++c)
        sums[c][r] = fma(weights[c], row, sums[c][r]);
    }
  };
  Vf weights[kBeside];
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    ARMLLM_LOOP("dense", rows);
    ARMLLM_UNROLL for (int64_t c = 0; c < kBeside; ++c)
      weights[c] = load(w[c] + k);
    add_products(k, weights);
  }
  if (k < n) {
    for (int64_t c = 0; c < kBeside; ++c) weights[c] = load_first(w[c] + k, n - k);
    add_products(k, weights);
  }
  for (int r = 0; r < rows; ++r) {
    float row[kBeside];
    for (int64_t c = 0; c < kBeside; ++c) row[c] = reduce_add(sums[c][r]);
    put_sums<T>(a, first_row + r, column, row, last + 1 - column < kBeside ? last + 1 - column : kBeside);
  }
}

template <class T, int rows>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end) {
  const int64_t columns = end * kColumns < a.shape.out_features ? end * kColumns : a.shape.out_features;
  for (int64_t c = begin * kColumns; c < columns; c += columns_beside(rows))
    multiply_tile<T, rows>(a, first_row, c);
}

}  // namespace dense
