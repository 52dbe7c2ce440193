// Quantized products with SDOT by lane: the tile of a number of rows, and the entries.

#pragma once

#include "kernels/matmul_sdot_int4.h"

template <int bits, int rows, int panels, int length>
ARMLLM_INLINE void tile_of_length(const Product& p) {
  if constexpr (rows > matmul_tile_rows(bits, length != 0)) {
    // No tile is as large.
  } else if constexpr (bits == 4) {
    pairs_tile<rows, panels, length>(p);
  } else if constexpr (length == 0) {
    channel_tile<rows, panels>(p);
  } else {
    grouped_tile<rows, panels, length>(p);
  }
}

template <int bits, int rows, int panels = 1>
ARMLLM_INLINE void tile_of(const Product& p) {
  if (!p.grouped) return tile_of_length<bits, rows, panels, 0>(p);
  if (p.group == 32) return tile_of_length<bits, rows, panels, 32>(p);
  if (p.group == 64) return tile_of_length<bits, rows, panels, 64>(p);
  tile_of_length<bits, rows, panels, 128>(p);
}

template <int bits>
ARMLLM_INLINE void row_tile(const Product& p) {
  if (p.panels == 4) return tile_of<bits, 1, 4>(p);
  Product one = p;
  for (int64_t j = 0; j < p.panels; ++j) {
    tile_of<bits, 1>(one);
    one.weights += p.panel_bytes;
    one.scales = of_panel(one.scales, p, 1);
    one.out += kColumnsOfPanel<bits>;
  }
}

template <int bits>
ARMLLM_INLINE void any_tile(const Product& p) {
  switch (p.rows) {
    case 1:
      row_tile<bits>(p);
      break;
    case 2:
      tile_of<bits, 2>(p);
      break;
    case 3:
      tile_of<bits, 3>(p);
      break;
    case 4:
      tile_of<bits, 4>(p);
      break;
    case 5:
      tile_of<bits, 5>(p);
      break;
    case 6:
      tile_of<bits, 6>(p);
      break;
    case 7:
      tile_of<bits, 7>(p);
      break;
    case 8:
      tile_of<bits, 8>(p);
      break;
    case 9:
      tile_of<bits, 9>(p);
      break;
    case 10:
      tile_of<bits, 10>(p);
      break;
    case 11:
      tile_of<bits, 11>(p);
      break;
    case 12:
      tile_of<bits, 12>(p);
      break;
    case 13:
      tile_of<bits, 13>(p);
      break;
    case 14:
      tile_of<bits, 14>(p);
      break;
    case 15:
      tile_of<bits, 15>(p);
      break;
    default:
      tile_of<bits, 16>(p);
  }
  add_zero_points<bits>(p, bits == 4 ? 16.0f : 1.0f);
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { any_tile<8>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { any_tile<4>(p); }

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, starts_bytes, prepare)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile, kNoDecoder, starts_bytes, prepare)
