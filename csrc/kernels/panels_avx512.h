// Products with bfloat16 weights in panels (panels.h) by VDPBF16PS: a vector of a panel is the pairs of two
// elements of in_features of its 16 columns, as the instruction takes them, and meets one pair of each row of
// activations, which are bfloat16. Every result is one chain of sums in the order of in_features, in every
// tile the same.

#pragma once

#include "kernels/avx512_products.h"
#include "kernels/dense.h"

namespace panels_dot {

inline constexpr int64_t kColumns = kPanelColumns, kTileRows = 8, kPanelsOfTile = 2, kLine = 32;
inline constexpr int64_t kAhead = 1024;
static_assert(kColumns == kBlock, "a vector has the columns of a panel");

template <class>
constexpr ARMLLM_INLINE int64_t features_together() {
  return 2;
}
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return panel_elements(s.in_features) * static_cast<int64_t>(sizeof(T));
}
// An odd number of lines, so that the rows of a tile fall into different sets of the cache.
ARMLLM_INLINE int64_t row_elements(const WeightShape& s) {
  return ((s.in_features + kLine - 1) / kLine | 1) * kLine;
}
ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
  return rows * row_elements(s) * static_cast<int64_t>(sizeof(bfloat16));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// Whole vectors, with zeros behind the last element.
ARMLLM_INLINE void put_row(const MatmulArgs& a, const bfloat16* x, int64_t row) {
  bfloat16* to = static_cast<bfloat16*>(a.activations) + row * row_elements(a.shape);
  const int64_t n = a.shape.in_features;
  memcpy(to, x, static_cast<size_t>(n) * sizeof(bfloat16));
  memset(to + n, 0, static_cast<size_t>(-n & (kLine - 1)) * sizeof(bfloat16));
}
ARMLLM_INLINE void put_row(const MatmulArgs& a, const float* x, int64_t row) {
  bfloat16* to = static_cast<bfloat16*>(a.activations) + row * row_elements(a.shape);
  const int64_t n = a.shape.in_features;
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) store(to + k, load(x + k));
  if (k < n) store(to + k, load_first(x + k, n - k));
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

// `count` panels side by side.
template <int rows, int count>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t first_panel) {
  const int64_t n = a.shape.in_features, stride = row_elements(a.shape), panel = panel_elements(n);
  const bfloat16* x = static_cast<const bfloat16*>(a.activations) + first_row * stride;
  const bfloat16* w = static_cast<const bfloat16*>(a.weight) + first_panel * panel;
  __m512 sums[rows][count];
  ARMLLM_UNROLL for (int i = 0; i < rows * count; ++i)
    sums[i / count][i % count] = _mm512_setzero_ps();
  for (int64_t k = 0; k < n; k += 2, w += 2 * kColumns) {
    __m512i columns[count];
    ARMLLM_UNROLL for (int c = 0; c < count; ++c)
      columns[c] = _mm512_loadu_si512(w + c * panel);
    if constexpr (rows <= 4) {  // wait for memory
      ARMLLM_UNROLL for (int c = 0; c < count; ++c)
        _mm_prefetch(w + c * panel + kAhead, _MM_HINT_T0);
    }
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      ARMLLM_UNROLL for (int c = 0; c < count; ++c)
        sums[r][c] = add_pair(sums[r][c], columns[c], x + r * stride + k);
    }
  }
  const int64_t column = first_panel * kColumns, there = a.shape.out_features - column;
  for (int r = 0; r < rows; ++r) {
    float row[count * kColumns];
    ARMLLM_UNROLL for (int c = 0; c < count; ++c)
      _mm512_storeu_ps(row + c * kColumns, sums[r][c]);
    dense::put_sums<bfloat16>(a, first_row + r, column, row,
                              there < count * kColumns ? there : count * kColumns);
  }
}

// At most `most` rows; few rows with more panels, so that sums do not wait for each other.
template <int most>
ARMLLM_INLINE void tile_by_all(const MatmulArgs& a, int64_t first_row, int64_t rows, int64_t begin,
                               int64_t end) {
  if constexpr (most > 1) {
    if (rows < most) return tile_by_all<most - 1>(a, first_row, rows, begin, end);
  }
  constexpr int kCount = most <= 4 ? 4 : kPanelsOfTile;
  int64_t panel = begin;
  for (; panel + kCount <= end; panel += kCount) tile_by_panels<most, kCount>(a, first_row, panel);
  if constexpr (kCount > 2) {
    for (; panel + 2 <= end; panel += 2) tile_by_panels<most, 2>(a, first_row, panel);
  }
  for (; panel < end; ++panel) tile_by_panels<most, 1>(a, first_row, panel);
}

template <class>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  const int64_t count = tiles(a.rows);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const auto [first, rows] = dense::rows_of_tile(a, tile, count);
    tile_by_all<kTileRows>(a, first, rows, panel_begin, panel_end);
  }
}

}  // namespace panels_dot
