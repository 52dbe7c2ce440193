// Products with floating-point weights as they lie in a checkpoint, [out_features, in_features]: each vector
// of a weight's row meets those of several rows of activations, which are float, and every product has a sum
// of its own, so that a result is the same in every tile.

#pragma once

#include "simd/primitives.h"

namespace dense {

inline constexpr int64_t kTileRows = 4, kColumns = 4;
template <class>
constexpr ARMLLM_INLINE int64_t features_together() {
  return 1;
}
// Columns that one tile takes: AVX2 has 16 registers.
constexpr ARMLLM_INLINE int64_t columns_beside(int rows) {
  return ARMLLM_LANES == 8 && rows > 2 ? 2 : kColumns;
}

// Rows of activations are padded with zeros to whole vectors, and panels.h takes four elements at a time.
ARMLLM_INLINE int64_t row_floats(const WeightShape& s) {
  constexpr int64_t kStep = kLanes < 4 ? 4 : kLanes;
  return (s.in_features + kStep - 1) / kStep * kStep;
}

template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
}
ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
  return rows * row_floats(s) * static_cast<int64_t>(sizeof(float));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

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
    Vf y = there < kLanes ? load_first(sums + i, there) : load(sums + i);
    if (bias != nullptr) y = add(y, there < kLanes ? load_first(bias + i, there) : load(bias + i));
    if (there < kLanes) {
      store_first(out + i, y, there);
    } else {
      store(out + i, y);
    }
  }
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

template <class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * kTileRows;
    switch (a.rows - first) {
      case 1:
        tile_by_panels<T, 1>(a, first, panel_begin, panel_end);
        break;
      case 2:
        tile_by_panels<T, 2>(a, first, panel_begin, panel_end);
        break;
      case 3:
        tile_by_panels<T, 3>(a, first, panel_begin, panel_end);
        break;
      default:
        tile_by_panels<T, 4>(a, first, panel_begin, panel_end);
    }
  }
}

}  // namespace dense
