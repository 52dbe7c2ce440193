// Rows of products with floating-point weights: activations as floats, and results from their sums. For any
// vector length, SVE's too.

#pragma once

#include "simd/primitives.h"

namespace dense {

// Rows of activations are padded with zeros to whole vectors, and panels.h takes four elements at a time.
ARMLLM_INLINE int64_t row_floats(const WeightShape& s) {
  const int64_t step = kLanes < 4 ? 4 : kLanes;
  return (s.in_features + step - 1) / step * step;
}

ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
  return rows * row_floats(s) * static_cast<int64_t>(sizeof(float));
}

// Of `count` tiles of all rows, of which none has two more than another.
struct TileRows {
  int64_t first, rows;
};
ARMLLM_INLINE TileRows rows_of_tile(const MatmulArgs& a, int64_t tile, int64_t count) {
  const int64_t first = a.rows * tile / count;
  return {first, a.rows * (tile + 1) / count - first};
}

template <class T>
ARMLLM_INLINE void put_row(const MatmulArgs& a, const T* x, int64_t row) {
  float* to = static_cast<float*>(a.activations) + row * row_floats(a.shape);
  const int64_t n = a.shape.in_features, padded = row_floats(a.shape);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) store(to + k, load(x + k));
  for (; k < padded; k += kLanes) store(to + k, k < n ? load_first(x + k, n - k) : zero());
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
}
template <class T>
ARMLLM_INLINE void gather(const MatmulArgs& a, const GatherArgs& from, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    put_row(a, static_cast<const T*>(from.rows) + from.ids[r] * from.stride, r);
  }
}

// One row's sums for n columns become its results.
template <class T>
ARMLLM_INLINE void put_sums(const MatmulArgs& a, int64_t row, int64_t column, const float* sums, int64_t n) {
  const int64_t at = row * a.out_stride + column;
  if (a.float_rows) {
    memcpy(static_cast<float*>(a.out) + at, sums, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  T* out = static_cast<T*>(a.out) + at;
  const T* bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + column;
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t there = n - i;
    Vf y = load_some(sums + i, there);
    if (bias != nullptr) y = add(y, load_some(bias + i, there));
    store_some(out + i, y, there);
  }
}

}  // namespace dense
