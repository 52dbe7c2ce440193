// Quantized products in Armv8.0: SMULL and SMLAL make sums of two products in 16 bits (at most 2 * 127 *
// 128), SADALP adds neighbors to sums in 32.

#pragma once

#include "simd/primitives.h"

inline constexpr int64_t kRowChunk = 8, kRowsOfPair = 1, kPanelsOfRow = 1, kFewRows = 1, kMaxTileRows = 4;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns4x8;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }

#include "kernels/matmul.h"

// 16 elements of four columns: [0] and [1] the first 8 of columns 0, 1 and 2, 3; [2] and [3] the other 8.
template <int bits>
ARMLLM_INLINE const uint8_t* load_block(const uint8_t* w, int8x16_t (&block)[4]) {
  const int8_t* p = reinterpret_cast<const int8_t*>(w);
  if constexpr (bits == 8) {
    ARMLLM_UNROLL for (int i = 0; i < 4; ++i)
      block[i] = vld1q_s8(p + 16 * i);
    return w + 64;
  } else {
    ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
      const int8x16_t both = vld1q_s8(p + 16 * i);
      block[i] = vshlq_n_s8(both, 4);
      block[2 + i] = vandq_s8(both, vdupq_n_s8(-16));
    }
    return w + 32;
  }
}

template <int bits, int rows>
ARMLLM_INLINE void smull_tile(const Product& p) {
  const uint8_t* w = p.weights;
  float32x4_t out[rows];
  for (int r = 0; r < rows; ++r) out[r] = vdupq_n_f32(0);
  for (int64_t g = 0; g < p.groups; ++g) {
    int32x4_t sums[rows][4];
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      ARMLLM_UNROLL for (int n = 0; n < 4; ++n)
        sums[r][n] = vdupq_n_s32(0);
    }
    for (int64_t k = g * p.group; k < (g + 1) * p.group; k += 16) {
      ARMLLM_LOOP("sixteen", rows * 1000 + 16);
      int8x16_t block[4];
      w = load_block<bits>(w, block);
      const int8_t* x = p.q + k * rows;
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
        const int8x8_t first = vld1_s8(x + 8 * r), second = vld1_s8(x + 8 * (rows + r));
        ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
          const int16x8_t even =
              vmlal_s8(vmull_s8(vget_low_s8(block[i]), first), vget_low_s8(block[2 + i]), second);
          const int16x8_t odd =
              vmlal_s8(vmull_s8(vget_high_s8(block[i]), first), vget_high_s8(block[2 + i]), second);
          sums[r][2 * i] = vpadalq_s16(sums[r][2 * i], even);
          sums[r][2 * i + 1] = vpadalq_s16(sums[r][2 * i + 1], odd);
        }
      }
    }
    const float32x4_t scales = vld1q_f32(p.scales + 4 * g);
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      const int32x4_t all =
          vpaddq_s32(vpaddq_s32(sums[r][0], sums[r][1]), vpaddq_s32(sums[r][2], sums[r][3]));
      out[r] = vfmaq_f32(out[r], vcvtq_f32_s32(all), scales);
    }
  }
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
    vst1q_f32(p.out + 4 * r, out[r]);
}

template <int bits>
ARMLLM_INLINE void smull_rows(const Product& p) {
  switch (p.rows) {
    case 1:
      return smull_tile<bits, 1>(p);
    case 2:
      return smull_tile<bits, 2>(p);
    case 3:
      return smull_tile<bits, 3>(p);
    default:
      return smull_tile<bits, 4>(p);
  }
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) {
  smull_rows<8>(p);
  add_zero_points<8>(p, 1.0f);
}
static ARMLLM_ENTRY void w4a8_tile(const Product& p) {
  smull_rows<4>(p);
  add_zero_points<4>(p, 16.0f);
}

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, no_more_bytes, nothing_more)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile, kNoDecoder, no_more_bytes, nothing_more)
