// panels.h in SVE with vectors of a panel's sixteen columns: several panels side by side meet one element of
// a row, which LD1RW puts into every lane. FMLA by element would run on one of A64FX's two pipes. A column
// has one sum in every tile, in the order of in_features. Shorter vectors take a panel in parts, which is not
// fast.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_SVE_LANES 16
#include "simd/sve.h"
#endif
#include "kernels/dense_rows.h"
#include "kernels/sums_sve.h"

namespace panels {

inline constexpr int64_t kColumns = kPanelColumns, kTileRows = 4, kPanelsOfTile = 4;

using dense::activation_bytes;
using dense::gather;
using dense::put_rows;

constexpr ARMLLM_INLINE int64_t together_of(const void*) { return 1; }
constexpr ARMLLM_INLINE int64_t together_of(const bfloat16*) { return 2; }
template <class T>
constexpr ARMLLM_INLINE int64_t features_together() {
  return together_of(static_cast<const T*>(nullptr));
}
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return panel_elements(s.in_features) * static_cast<int64_t>(sizeof(T));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Columns `first` and on of a panel's weights for two elements of in_features.
template <class T>
ARMLLM_INLINE void load_two(const T* w, int64_t first, Vf& even, Vf& odd) {
  even = load(w + first);
  odd = load(w + kColumns + first);
}
ARMLLM_INLINE void load_two(const bfloat16* w, int64_t first, Vf& even, Vf& odd) {
  const Vu pairs = svld1_u32(used(), reinterpret_cast<const uint32_t*>(w) + first);
  even = bf16_to_float(pairs);
  odd = svreinterpret_f32_u32(svand_n_u32_x(every(), pairs, 0xffff0000u));
}

// NOLINTBEGIN(readability-function-size): the sums have no array.
template <int p, int rows, int count, class T>
ARMLLM_INLINE void add_panels(const T* w, int64_t panel, int64_t first, ARMLLM_FOUR(Vf x), ARMLLM_FOUR(Vf y),
                              ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (p < count) {
    Vf even, odd;
    load_two(w + p * panel, first, even, odd);
    add_element<p, rows, count>(even, ARMLLM_FOUR(x), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
    add_element<p, rows, count>(odd, ARMLLM_FOUR(y), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
    add_panels<p + 1, rows, count>(w, panel, first, ARMLLM_FOUR(x), ARMLLM_FOUR(y), ARMLLM_EIGHT(a),
                                   ARMLLM_EIGHT(b));
  }
}

template <int i, int count, int n>
ARMLLM_INLINE void store_sums(float* out, ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (i < n) {
    store(out + i * kColumns, pick<i>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b)));
    store_sums<i + 1, count, n>(out, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  }
}
// NOLINTEND(readability-function-size)

template <int r, int rows>
ARMLLM_INLINE Vf element(const float* x, int64_t stride) {
  if constexpr (r < rows) return splat(x[r * stride]);
  return zero();
}

// The sums of `count` panels, columns `first` and on of each: [rows, count, kColumns].
template <class T, int rows, int count>
ARMLLM_INLINE void sum_columns(const MatmulArgs& m, int64_t first_row, int64_t first_panel, int64_t first,
                               float* out) {
  const int64_t n = m.shape.in_features, stride = dense::row_floats(m.shape), panel = panel_elements(n);
  const float* x = static_cast<const float*>(m.activations) + first_row * stride;
  const T* w = static_cast<const T*>(m.weight) + first_panel * panel;
  Vf a0 = zero(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  Vf b0 = zero(), b1 = b0, b2 = b0, b3 = b0, b4 = b0, b5 = b0, b6 = b0, b7 = b0;
  for (int64_t k = 0; k < n; k += 2, x += 2, w += 2 * kColumns) {
    ARMLLM_LOOP("panels", rows);
    const Vf x0 = element<0, rows>(x, stride), y0 = element<0, rows>(x + 1, stride);
    const Vf x1 = element<1, rows>(x, stride), y1 = element<1, rows>(x + 1, stride);
    const Vf x2 = element<2, rows>(x, stride), y2 = element<2, rows>(x + 1, stride);
    const Vf x3 = element<3, rows>(x, stride), y3 = element<3, rows>(x + 1, stride);
    add_panels<0, rows, count>(w, panel, first, ARMLLM_FOUR(x), ARMLLM_FOUR(y), ARMLLM_EIGHT(a),
                               ARMLLM_EIGHT(b));
  }
  store_sums<0, count, rows * count>(out + first, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
}

template <class T, int rows, int count>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t first_panel) {
  float sums[rows * count * kColumns];
  for (int64_t first = 0; first < kColumns; first += kLanes) {
    sum_columns<T, rows, count>(a, first_row, first_panel, first, sums);
  }
  const int64_t column = first_panel * kColumns, there = a.shape.out_features - column;
  for (int r = 0; r < rows; ++r) {
    dense::put_sums<T>(a, first_row + r, column, sums + r * count * kColumns,
                       there < count * kColumns ? there : count * kColumns);
  }
}

// Panels by `count`, then by fewer.
template <class T, int rows, int count>
ARMLLM_INLINE void tile_by_counts(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end) {
  for (; begin + count <= end; begin += count) tile_by_panels<T, rows, count>(a, first_row, begin);
  if constexpr (count > 1) {
    if (begin < end) tile_by_counts<T, rows, count / 2>(a, first_row, begin, end);
  }
}

template <class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  const int64_t count = tiles(a.rows);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const auto [first, rows] = dense::rows_of_tile(a, tile, count);
    switch (rows) {
      case 1:
        tile_by_counts<T, 1, 8>(a, first, panel_begin, panel_end);
        break;
      case 2:
        tile_by_counts<T, 2, 8>(a, first, panel_begin, panel_end);
        break;
      case 3:
        tile_by_counts<T, 3, 4>(a, first, panel_begin, panel_end);
        break;
      default:
        tile_by_counts<T, 4, 4>(a, first, panel_begin, panel_end);
    }
  }
}

}  // namespace panels
