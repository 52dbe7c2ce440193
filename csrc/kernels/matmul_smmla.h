// Quantized products with SMMLA: the tile of a number of rows, and the entries.

#pragma once

#include "kernels/matmul_smmla_row.h"

template <int bits, int pairs>
ARMLLM_INLINE void tile_of(const Product& p) {
  if constexpr (pairs <= 6) {
    if (p.grouped && p.group == 32) return grouped_tile<bits, pairs, 32>(p);
    if (p.grouped && p.group == 64) return grouped_tile<bits, pairs, 64>(p);
    if (p.grouped) return grouped_tile<bits, pairs, 128>(p);
  }
  channel_tile<bits, pairs>(p);
}

template <int bits>
ARMLLM_INLINE void any_tile(const Product& p) {
  if (p.single) {
    // Of int8 two panels at a time: there loads of weights are the limit, of int4 those of the row would be.
    constexpr int kTogether = bits == 8 ? 2 : kPanelsOfRow;
    Product some = p;
    for (int64_t left = p.panels; left > 0;) {
      const int64_t n = left >= kTogether ? kTogether : 1;
      if (n == kTogether) {
        single_row<bits, kTogether>(some);
      } else {
        single_row<bits, 1>(some);
      }
      some.weights += n * p.panel_bytes;
      some.scales = of_panel(some.scales, p, n);
      some.out += 8 * n;
      left -= n;
    }
  } else {
    switch (p.rows) {
      case 2:
        tile_of<bits, 1>(p);
        break;
      case 4:
        tile_of<bits, 2>(p);
        break;
      case 6:
        tile_of<bits, 3>(p);
        break;
      case 8:
        tile_of<bits, 4>(p);
        break;
      case 10:
        tile_of<bits, 5>(p);
        break;
      case 12:
        tile_of<bits, 6>(p);
        break;
      case 14:
        tile_of<bits, 7>(p);
        break;
      default:
        tile_of<bits, 8>(p);
    }
  }
  if (p.end == p.features) add_zero_points<bits>(p, bits == 4 || p.decoded ? 16.0f : 1.0f);
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { any_tile<8>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { any_tile<4>(p); }

// Panels of both have the same columns: bytes of pairs of columns come apart into runs of 8 of each, 16 times
// their values. SMMLA then takes no mask: with groups of 32 that is a slot of every 20.
static_assert(kColumnsOfPanel<4> == kColumnsOfPanel<8>);
static ARMLLM_ENTRY void decode_panel(const uint8_t* panel, int64_t features, uint8_t* to) {
  for (int64_t k = 0; k < features; k += 8, panel += 16, to += 32) {
    const uint8x16_t pairs = vld1q_u8(panel);
    const uint64x2_t high = vreinterpretq_u64_u8(vandq_u8(pairs, vdupq_n_u8(0xF0)));
    const uint64x2_t low = vreinterpretq_u64_u8(veorq_u8(vshlq_n_u8(pairs, 4), vdupq_n_u8(0x80)));
    vst1q_u8(to, vreinterpretq_u8_u64(vzip1q_u64(high, low)));
    vst1q_u8(to + 16, vreinterpretq_u8_u64(vzip2q_u64(high, low)));
  }
}
static constexpr Decoder kDecoder{decode_panel, w8a8_tile};

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, starts_bytes, prepare)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile, kDecoder, starts_bytes, prepare)
