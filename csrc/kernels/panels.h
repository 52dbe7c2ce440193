// Products with floating-point weights in panels of 16 columns (kernels.h): a vector of weights meets one
// activation of each row, so that nothing is added up across lanes, and one stream of memory feeds 16
// columns. Every product has a separate sum, in the order of in_features: a result is the same in every
// tile.

#pragma once

#include "kernels/dense.h"

namespace panels {

inline constexpr int64_t kColumns = kPanelColumns;
inline constexpr int kVectors = kColumns / kLanes;
inline constexpr int kTileRows = kLanes == 1 ? 1 : kLanes == 4 ? 4 : kLanes == 8 ? 5 : 12;
// Sums in registers: enough to hide the latency of an addition, and that leave room for weights and rows.
inline constexpr int kSums = kLanes == 8 ? 10 : kLanes == 4 ? 16 : 24;
inline constexpr int64_t kPanelsOfTile = kSums / (kTileRows * kVectors);

// Pairs of bfloat16 widen by a shift and a mask.
constexpr ARMLLM_INLINE int64_t together_of(const void*) { return 1; }
constexpr ARMLLM_INLINE int64_t together_of(const bfloat16*) { return 2; }
template <class T>
constexpr ARMLLM_INLINE int64_t features_together() {
  return together_of(static_cast<const T*>(nullptr));
}

template <class T>
inline constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));  // elements of a cache line

// Up to so many rows, a tile fetches a part of the panel that comes next while it meets this one.
inline constexpr int64_t kFetchingRows = kLanes == 8 ? 32 : 0;
// A whole tile fetches the rows of the tile that comes next, which another core may have made, if they have
// at most so many elements: longer ones leave no room in the first-level cache.
inline constexpr int64_t kMostFetched = kLanes == 16 ? 768 : 0;
inline constexpr int kRows = -1;  // in place of a number of lines

// Of panels of 16 bits that are widened for many rows, before the tiles meet them and not again by each.
template <class T>
constexpr ARMLLM_INLINE int64_t widened_bytes() {
  return kLanes > 1 && sizeof(T) < sizeof(float) ? kDecodedBytes : 0;
}

using dense::activation_bytes;
using dense::gather;
using dense::put_rows;
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return panel_elements(s.in_features) * static_cast<int64_t>(sizeof(T));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// One panel's weights for two elements of in_features.
template <class T>
ARMLLM_INLINE void load_two(const T* w, Vf (&even)[kVectors], Vf (&odd)[kVectors]) {
  ARMLLM_UNROLL for (int i = 0; i < kVectors; ++i) {
    even[i] = load(w + i * kLanes);
    odd[i] = load(w + kColumns + i * kLanes);
  }
}
ARMLLM_INLINE void load_two(const bfloat16* w, Vf (&even)[kVectors], Vf (&odd)[kVectors]) {
  ARMLLM_UNROLL for (int i = 0; i < kVectors; ++i)
    load_pairs(w + 2 * i * kLanes, even[i], odd[i]);
}

// By elements `lane` and `lane` + 1 of each row's four.
template <int lane, class T, int rows, int count>
ARMLLM_INLINE void add_products(const T* w, int64_t panel, const Quad (&four)[rows],
                                Vf (&sums)[count][rows][kVectors]) {
  ARMLLM_UNROLL for (int c = 0; c < count; ++c) {
    Vf even[kVectors], odd[kVectors];
    load_two(w + c * panel, even, odd);
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors; ++i) {
      Vf& sum = sums[c][i / kVectors][i % kVectors];
      sum = fma_lane<lane>(even[i % kVectors], four[i / kVectors], sum);
    }
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors; ++i) {
      Vf& sum = sums[c][i / kVectors][i % kVectors];
      sum = fma_lane<lane + 1>(odd[i % kVectors], four[i / kVectors], sum);
    }
  }
}

// One of a panel's vectors of weights for the first or second of two elements of in_features.
template <int which, class T>
ARMLLM_INLINE Vf load_one(const T* w, int vector) {
  return load(w + which * kColumns + vector * kLanes);
}
template <int which>
ARMLLM_INLINE Vf load_one(const bfloat16* w, int vector) {
  Vf even, odd;
  load_pairs(w + 2 * vector * kLanes, even, odd);
  return which == 0 ? even : odd;
}

// By element `lane` of each row's four; w: of this one and its neighbour. Of weights and activations, the
// fewer stay in registers beside the sums.
template <int lane, class T, int rows, int count>
ARMLLM_INLINE void add_element(const T* w, int64_t panel, const Quad (&four)[rows],
                               Vf (&sums)[count][rows][kVectors]) {
  constexpr int kAll = count * kVectors;
  if constexpr (kAll <= rows) {
    Vf weights[kAll];
    ARMLLM_UNROLL for (int i = 0; i < kAll; ++i)
      weights[i] = load_one<lane % 2>(w + i / kVectors * panel, i % kVectors);
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      ARMLLM_UNROLL for (int i = 0; i < kAll; ++i) {
        Vf& sum = sums[i / kVectors][r][i % kVectors];
        sum = fma_lane<lane>(weights[i], four[r], sum);
      }
    }
  } else {
    ARMLLM_UNROLL for (int i = 0; i < kAll; ++i) {
      const Vf weights = load_one<lane % 2>(w + i / kVectors * panel, i % kVectors);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
        Vf& sum = sums[i / kVectors][r][i % kVectors];
        sum = fma_lane<lane>(weights, four[r], sum);
      }
    }
  }
}

// By all four elements.
template <class T, int rows, int count>
ARMLLM_INLINE void add_four(const T* w, int64_t panel, const Quad (&four)[rows],
                            Vf (&sums)[count][rows][kVectors]) {
  if constexpr (kLanes == 16) {  // GCC loads the weights of several elements ahead, and keeps sums in memory
    add_element<0>(w, panel, four, sums);
    add_element<1>(later(w), panel, four, sums);
    add_element<2>(later(w + 2 * kColumns), panel, four, sums);
    add_element<3>(later(w + 2 * kColumns), panel, four, sums);
  } else {
    add_products<0>(w, panel, four, sums);
    add_products<2>(w + 2 * kColumns, panel, four, sums);
  }
}

// The sums of whole panels become results: dense::put_sums from registers.
template <class T, int count, int rows>
ARMLLM_INLINE void put_whole(const MatmulArgs& a, int64_t first_row, int64_t column,
                             const Vf (&sums)[count][rows][kVectors]) {
  T* out = static_cast<T*>(a.out) + first_row * a.out_stride + column;
  const T* const bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + column;
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r, out += a.out_stride) {
    ARMLLM_UNROLL for (int i = 0; i < count * kVectors; ++i) {
      const Vf sum = sums[i / kVectors][r][i % kVectors];
      store(out + i * kLanes, bias == nullptr ? sum : add(sum, load(bias + i * kLanes)));
    }
  }
}

// `count` panels side by side, whose weights are w. Beside each four elements of in_features it fetches so
// many lines, the first of which is `ahead` of them; or with kRows a line of rows, from `next` on.
template <class T, int rows, int count, int fetches, class W>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t first_panel, const W* w,
                                  [[maybe_unused]] int64_t ahead, [[maybe_unused]] const float* next) {
  const int64_t n = a.shape.in_features, stride = dense::row_floats(a.shape), panel = panel_elements(n);
  const float* x = static_cast<const float*>(a.activations) + first_row * stride;
  Vf sums[count][rows][kVectors];
  ARMLLM_UNROLL for (int i = 0; i < count * rows * kVectors; ++i)
    sums[i / (rows * kVectors)][i / kVectors % rows][i % kVectors] = zero();
  for (int64_t k = 0; k < n; k += 4, w += 4 * kColumns) {
    ARMLLM_LOOP("panels", rows);
    ARMLLM_UNROLL for (int64_t i = 0; i < fetches; ++i)
      __builtin_prefetch(w + ahead + i * kLine<W>);
    if constexpr (fetches == kRows) {
      __builtin_prefetch(next, 0, 2);
      next += kLine<float>;
    }
    Quad four[rows];
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
      four[r] = load_quad(x + r * stride + k);
    add_four(w, panel, four, sums);
  }
  const int64_t column = first_panel * kColumns, there = a.shape.out_features - column;
  if (there >= count * kColumns && !a.float_rows) return put_whole<T>(a, first_row, column, sums);
  for (int r = 0; r < rows; ++r) {
    float row[count * kColumns];
    for (int i = 0; i < count * kVectors; ++i) store(row + i * kLanes, sums[i / kVectors][r][i % kVectors]);
    dense::put_sums<T>(a, first_row + r, column, row, there < count * kColumns ? there : count * kColumns);
  }
}

// Panels by `count`, then by fewer, so that sums do not wait for each other.
template <class T, int rows, int count, int fetches, class W>
ARMLLM_INLINE void tile_by_counts(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end,
                                  const W* w, int64_t ahead, const float* next = nullptr) {
  const int64_t panel = panel_elements(a.shape.in_features);
  for (; begin + count <= end; begin += count, w += count * panel) {
    tile_by_panels<T, rows, count, fetches>(a, first_row, begin, w, ahead, next);
    if constexpr (fetches == kRows) next += panel / 4;
  }
  if constexpr (count > 1) {
    if (begin < end) tile_by_counts<T, rows, count / 2, fetches>(a, first_row, begin, end, w, ahead, next);
  }
}

// Panels that so many rows meet at a time: a multiple of those of a whole tile, as blocks of panels have, or
// some would be left for a tile of a single panel.
constexpr ARMLLM_INLINE int panels_beside(int rows) {
  constexpr int kMost = 8, kTogether = static_cast<int>(kPanelsOfTile);
  const int fit = kSums / (rows * kVectors), whole = fit < kMost ? fit / kTogether * kTogether : kMost;
  return whole < 1 ? 1 : whole;
}

// At most `most` rows; w: the weights of panel `begin`.
template <class T, int most, int fetches = 0, class W>
ARMLLM_INLINE void tile_by_all(const MatmulArgs& a, int64_t first_row, int64_t rows, int64_t begin,
                               int64_t end, const W* w, int64_t ahead = 0) {
  if constexpr (most > 1) {
    if (rows < most) return tile_by_all<T, most - 1, fetches>(a, first_row, rows, begin, end, w, ahead);
  }
  tile_by_counts<T, most, panels_beside(most), fetches>(a, first_row, begin, end, w, ahead);
}

template <class T>
ARMLLM_INLINE const T* weights_of(const MatmulArgs& a, int64_t panel) {
  return static_cast<const T*>(a.weight) + panel * panel_elements(a.shape.in_features);
}

// Panel after panel meets all tiles, which share the fetching of the next panel's lines: with few rows a
// product would wait for memory, then multiply.
template <class T>
ARMLLM_INLINE void multiply_few(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end,
                                int64_t panel_begin, int64_t panel_end) {
  constexpr int64_t kLines = 4 * kColumns / kLine<T>;
  const int64_t count = tiles(a.rows), next = panel_elements(a.shape.in_features);
  const bool by_two = tile_end - tile_begin < kLines;  // too few for one line each
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const T* const w = weights_of<T>(a, panel);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const auto [first, rows] = dense::rows_of_tile(a, tile, count);
      const int64_t line = (tile - tile_begin) * (by_two ? 2 : 1);
      const int64_t ahead = line < kLines ? next + line * kLine<T> : 0;
      if (by_two) {
        tile_by_all<T, kTileRows, 2>(a, first, rows, panel, panel + 1, w, ahead);
      } else {
        tile_by_all<T, kTileRows, 1>(a, first, rows, panel, panel + 1, w, ahead);
      }
    }
  }
}

// As many panels at a time as the scratch memory holds in fp32, and all tiles over these.
template <class T>
ARMLLM_INLINE void multiply_widened(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end,
                                    int64_t panel_begin, int64_t panel_end) {
  const int64_t count = tiles(a.rows), panel = panel_elements(a.shape.in_features);
  const int64_t fit = kDecodedBytes / (panel * static_cast<int64_t>(sizeof(float)));
  const int64_t together = fit < kPanelsOfTile ? fit : fit / kPanelsOfTile * kPanelsOfTile;
  float* const wide = static_cast<float*>(a.scratch);
  for (int64_t begin = panel_begin; begin < panel_end; begin += together) {
    const int64_t end = panel_end - begin < together ? panel_end : begin + together;
    const T* w = weights_of<T>(a, begin);
    for (int64_t i = 0; i < (end - begin) * panel; i += 2 * kColumns) {
      ARMLLM_LOOP("widen", 1);
      Vf even[kVectors], odd[kVectors];
      load_two(w + i, even, odd);
      ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v) {
        store(wide + i + v * kLanes, even[v]);
        store(wide + i + kColumns + v * kLanes, odd[v]);
      }
    }
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const auto [first, rows] = dense::rows_of_tile(a, tile, count);
      tile_by_all<T, kTileRows>(a, first, rows, begin, end, wide);
    }
  }
}

template <class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  const int64_t count = tiles(a.rows);
  if constexpr (kFetchingRows > 0) {
    if (count > 1 && a.rows <= kFetchingRows) {
      return multiply_few<T>(a, tile_begin, tile_end, panel_begin, panel_end);
    }
  }
  if constexpr (widened_bytes<T>() > 0) {
    const int64_t rows = a.rows * tile_end / count - a.rows * tile_begin / count;
    const int64_t bytes = panel_elements(a.shape.in_features) * static_cast<int64_t>(sizeof(float));
    if (a.scratch != nullptr && rows >= kDecodedRows && bytes <= kDecodedBytes) {
      return multiply_widened<T>(a, tile_begin, tile_end, panel_begin, panel_end);
    }
  }
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const auto [first, rows] = dense::rows_of_tile(a, tile, count);
    const T* const w = weights_of<T>(a, panel_begin);
    if constexpr (kMostFetched > 0) {
      if (rows == kTileRows && tile + 1 < tile_end && a.shape.in_features <= kMostFetched) {
        const int64_t stride = dense::row_floats(a.shape);
        const float* const next = static_cast<const float*>(a.activations) + (first + rows) * stride;
        tile_by_counts<T, kTileRows, panels_beside(kTileRows), kRows>(a, first, panel_begin, panel_end, w, 0,
                                                                      next);
        continue;
      }
    }
    tile_by_all<T, kTileRows>(a, first, rows, panel_begin, panel_end, w);
  }
}

}  // namespace panels
