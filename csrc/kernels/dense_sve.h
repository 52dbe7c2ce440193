// dense.h in SVE: a vector of a row of activations meets those of eight rows of a weight. A product has one
// sum in every tile, in the same order.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_SVE_LANES 16
#include "simd/sve.h"
#endif
#include "kernels/dense_tiles.h"
#include "kernels/sums_sve.h"

namespace dense {

inline constexpr int64_t kColumns = 8;
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
}

// NOLINTBEGIN(readability-function-size): the sums have no array.
template <int c, int rows, int count, class T>
ARMLLM_INLINE void add_columns(svbool_t lanes, const T* const (&w)[count], int64_t k, ARMLLM_FOUR(Vf x),
                               ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (c < count) {
    add_element<c, rows, count>(load_lanes(lanes, w[c] + k), ARMLLM_FOUR(x), ARMLLM_EIGHT(a),
                                ARMLLM_EIGHT(b));
    add_columns<c + 1, rows, count>(lanes, w, k, ARMLLM_FOUR(x), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  }
}

template <int i, int n>
ARMLLM_INLINE void reduce_sums(float (&out)[n], ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (i < n) {
    out[i] = reduce_add(pick<i>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b)));
    reduce_sums<i + 1>(out, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  }
}
// NOLINTEND(readability-function-size)

template <int r, int rows>
ARMLLM_INLINE Vf row_of(const float* x, int64_t stride) {
  if constexpr (r < rows) return load(x + r * stride);  // padded to whole vectors
  return zero();
}

template <class T, int rows, int count>
ARMLLM_INLINE void multiply_tile(const MatmulArgs& m, int64_t first_row, int64_t column) {
  const int64_t n = m.shape.in_features, stride = row_floats(m.shape), there = m.shape.out_features - column;
  const float* x = static_cast<const float*>(m.activations) + first_row * stride;
  const T* w[count];
  for (int c = 0; c < count; ++c) {
    w[c] = static_cast<const T*>(m.weight) + (column + (c < there ? c : there - 1)) * n;
  }
  Vf a0 = zero(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  Vf b0 = zero(), b1 = b0, b2 = b0, b3 = b0, b4 = b0, b5 = b0, b6 = b0, b7 = b0;
  const auto add_products = [&](svbool_t lanes, int64_t k) ARMLLM_LAMBDA {
    const Vf x0 = row_of<0, rows>(x + k, stride), x1 = row_of<1, rows>(x + k, stride);
    const Vf x2 = row_of<2, rows>(x + k, stride), x3 = row_of<3, rows>(x + k, stride);
    add_columns<0, rows>(lanes, w, k, ARMLLM_FOUR(x), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  };
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    ARMLLM_LOOP("dense", rows);
    add_products(used(), k);
  }
  if (k < n) add_products(first_lanes(n - k), k);
  float sums[rows * count];
  reduce_sums<0>(sums, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  for (int r = 0; r < rows; ++r) {
    put_sums<T>(m, first_row + r, column, sums + r * count, there < count ? there : count);
  }
}

template <class T, int rows>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end) {
  constexpr int kCount = rows > 2 ? 4 : 8;
  const int64_t columns = end * kColumns < a.shape.out_features ? end * kColumns : a.shape.out_features;
  for (int64_t c = begin * kColumns; c < columns; c += kCount)
    multiply_tile<T, rows, kCount>(a, first_row, c);
}

}  // namespace dense
