// Products of bfloat16 with the tiles of AMX (amx_tiles.h): TDPBF16PS adds the product of
// a tile of 16 rows by 32 elements and one of 16 pairs of elements by 16 columns to a tile of 16 by 16
// floats. Products are exact, sums are float; subnormal numbers count as zero.

#pragma once

#include "kernels/amx_tiles.h"

namespace tiles {

inline constexpr int64_t kDepth = 32;

// All rows by blocks of columns, `depth` elements of each in a step.
class Products {
 public:
  // Tiles 0 to 3 are sums, 4 and 5 rows and 6 columns of `depth` elements.
  ARMLLM_MEMBER Products(int64_t rows, int64_t depth) : rows_(rows) {
    TileShapes shapes;
    for (int i = 0; i < 7; ++i) {
      shapes.rows[i] = static_cast<uint8_t>(i < 6 ? (rows < kBlock ? rows : kBlock) : depth / 2);
      shapes.column_bytes[i] = static_cast<uint16_t>(i < 4 || i == 6 ? 4 * kBlock : 2 * depth);
    }
    load_shapes(shapes);
  }
  ARMLLM_MEMBER ~Products() { _tile_release(); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // All rows with n blocks of columns; `each` gets how many blocks of rows and of columns, and the first of
  // these.
  template <class Each>
  ARMLLM_MEMBER void by_blocks(int64_t n, const Each& each) const {
    int64_t i = 0;
    if (rows_ > kBlock) {
      for (; i + 2 <= n; i += 2) each(Number<2>{}, Number<2>{}, i);
      if (i < n) each(Number<2>{}, Number<1>{}, i);
      return;
    }
    for (; i + 4 <= n; i += 4) each(Number<1>{}, Number<4>{}, i);
    if (n - i == 3) each(Number<1>{}, Number<3>{}, i);
    if (n - i == 2) each(Number<1>{}, Number<2>{}, i);
    if (n - i == 1) each(Number<1>{}, Number<1>{}, i);
  }

  // The products of R blocks of rows and C of columns, summed over `steps` of the depth, up to four sums at a
  // time: they become, or are added to, those in memory. A tile has no index, so the loops are written out.
  template <int R, int C, class Rows, class Columns>
  ARMLLM_MEMBER void sum(float* sums, int64_t stride, bool add, int64_t steps, const Rows& rows,
                         int64_t row_stride, const Columns& columns, int64_t column_stride) const {
    static_assert(R * C <= 4 && R <= 2, "there are four tiles of sums");
    float* second = sums + (R == 2 ? kBlock * stride : 2 * kBlock);
    if (add) {
      _tile_loadd(0, sums, 4 * stride);
      if constexpr (C > 1) _tile_loadd(1, sums + kBlock, 4 * stride);
      if constexpr (R == 2 || C > 2) _tile_loadd(2, second, 4 * stride);
      if constexpr (R * C == 4) _tile_loadd(3, second + kBlock, 4 * stride);
    } else {
      _tile_zero(0);
      if constexpr (C > 1) _tile_zero(1);
      if constexpr (R == 2 || C > 2) _tile_zero(2);
      if constexpr (R * C == 4) _tile_zero(3);
    }
    for (int64_t i = 0; i < steps; ++i) {
      _tile_loadd(4, rows(i, 0), row_stride);
      if constexpr (R == 2) _tile_loadd(5, rows(i, 1), row_stride);
      _tile_loadd(6, columns(i, 0), column_stride);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (R == 2) _tile_dpbf16ps(2, 5, 6);
      if constexpr (C > 1) {
        _tile_loadd(6, columns(i, 1), column_stride);
        _tile_dpbf16ps(1, 4, 6);
        if constexpr (R == 2) _tile_dpbf16ps(3, 5, 6);
      }
      if constexpr (C > 2) {
        _tile_loadd(6, columns(i, 2), column_stride);
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (C > 3) {
        _tile_loadd(6, columns(i, 3), column_stride);
        _tile_dpbf16ps(3, 4, 6);
      }
    }
    _tile_stored(0, sums, 4 * stride);
    if constexpr (C > 1) _tile_stored(1, sums + kBlock, 4 * stride);
    if constexpr (R == 2 || C > 2) _tile_stored(2, second, 4 * stride);
    if constexpr (R * C == 4) _tile_stored(3, second + kBlock, 4 * stride);
  }

 private:
  int64_t rows_;
};

}  // namespace tiles
