// How a product with weights as they lie in a checkpoint is cut into tiles of rows; dense.h and dense_sve.h
// compute one.

#pragma once

#include "kernels/dense_rows.h"

namespace dense {

inline constexpr int64_t kTileRows = 4, kPanelsOfTile = 1;
template <class>
constexpr ARMLLM_INLINE int64_t features_together() {
  return 1;
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

// The products of `rows` rows with the columns of some panels.
template <class T, int rows>
ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end);

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
