// Quantized products with SDOT by lane: four elements of four columns times four elements of a row. This is
// the part of int8, and what int4 shares with it.

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.dotprod"
#endif
#include "simd/primitives.h"

inline constexpr int64_t kRowChunk = 16, kRowsOfPair = 1, kPanelsOfRow = 4, kFewRows = 1;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr int64_t kMaxTileRows = 16;
inline constexpr const WeightLayout& kLayout = kColumnPairs4x4;
// The sums of groups need as many registers as the integers.
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int bits, bool grouped) {
  if (bits == 4) return grouped ? 6 : 12;
  return grouped ? 12 : 16;
}

#include "kernels/matmul.h"

// 16 elements of four columns, four by four.
ARMLLM_INLINE const uint8_t* load_block(const uint8_t* w, int8x16_t (&block)[4]) {
  ARMLLM_UNROLL for (int i = 0; i < 4; ++i)
    block[i] = vld1q_s8(reinterpret_cast<const int8_t*>(w) + 16 * i);
  return w + 64;
}

// The 16 elements of a row at `x` + `offset`. The largest tiles leave a single register for them, while
// compilers load many of them ahead, as if the core could not, and then spill sums.
template <bool crowded>
ARMLLM_INLINE int32x4_t add_products(int32x4_t sum, const int8x16_t (&block)[4], const int8_t* x,
                                     int offset) {
  int8x16_t row;
  if constexpr (crowded) {
    __asm__ volatile(
        "ldr %q0, [%6, %7]\n\tsdot %1.4s, %2.16b, %0.4b[0]\n\tsdot %1.4s, %3.16b, %0.4b[1]\n\t"
        "sdot %1.4s, %4.16b, %0.4b[2]\n\tsdot %1.4s, %5.16b, %0.4b[3]"
        : "=&w"(row), "+w"(sum)
        : "w"(block[0]), "w"(block[1]), "w"(block[2]), "w"(block[3]), "r"(x), "i"(offset));
    return sum;
  } else {
    row = vld1q_s8(x + offset);
    sum = vdotq_laneq_s32(sum, block[0], row, 0);
    sum = vdotq_laneq_s32(sum, block[1], row, 1);
    sum = vdotq_laneq_s32(sum, block[2], row, 2);
    return vdotq_laneq_s32(sum, block[3], row, 3);
  }
}

template <int rows, int panels>
ARMLLM_INLINE void channel_tile(const Product& p) {
  // A single row has few sums: each gets four accumulators, so that SDOT need not wait for itself.
  constexpr int kParts = rows == 1 ? 4 : 1;
  constexpr bool kCrowded = rows > 8;
  const uint8_t* w[panels];
  const int8_t* x = p.q;
  int32x4_t sums[panels][rows][kParts];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = p.weights + j * p.panel_bytes;
    ARMLLM_UNROLL for (int r = 0; r < rows * kParts; ++r)
      sums[j][r / kParts][r % kParts] = vdupq_n_s32(0);
  }
  for (int64_t k = 0; k < p.features; k += 16) {
    ARMLLM_LOOP("channel", rows * 1000 + 16);
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      int8x16_t block[4];
      w[j] = load_block(w[j], block);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
        int32x4_t(&sum)[kParts] = sums[j][r];
        if constexpr (kParts == 1) {
          sum[0] = add_products<kCrowded>(sum[0], block, x, 16 * r);
        } else {
          const int8x16_t row = vld1q_s8(x + 16 * r);
          sum[0] = vdotq_laneq_s32(sum[0], block[0], row, 0);
          sum[1] = vdotq_laneq_s32(sum[1], block[1], row, 1);
          sum[2] = vdotq_laneq_s32(sum[2], block[2], row, 2);
          sum[3] = vdotq_laneq_s32(sum[3], block[3], row, 3);
        }
      }
    }
    x += 16 * rows;
  }
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    const float32x4_t scales = vld1q_f32(of_panel(p.scales, p, j));
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      int32x4_t sum = sums[j][r][0];
      ARMLLM_UNROLL for (int i = 1; i < kParts; ++i)
        sum = vaddq_s32(sum, sums[j][r][i]);
      vst1q_f32(p.out + 4 * (j * rows + r), vmulq_f32(vcvtq_f32_s32(sum), scales));
    }
  }
}

// Integers start at the bits of 1.5 * 2^23, where a float's last bit counts 1: as floats they are off by just
// that number, which a subtraction mends, in one slot where SCVTF takes two. Exact below 2^22: a group of 128
// reaches 128 * 127 * 128, of 4 bits 128 * 127 * 136.
alignas(16) static const int32_t kStart[4] = {kRounderBits, kRounderBits, kRounderBits, kRounderBits};

template <int rows, int panels, int length>
ARMLLM_INLINE void grouped_tile(const Product& p) {
  constexpr bool kCrowded = rows > 8;
  const uint8_t* w[panels];
  const int8_t* x = p.q;
  const float* scales[panels];
  float32x4_t out[panels][rows];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = p.weights + j * p.panel_bytes;
    scales[j] = of_panel(p.scales, p, j);
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
      out[j][r] = vdupq_n_f32(0);
  }
  const int64_t groups = p.groups;
  for (int64_t g = 0; g < groups; ++g) {
    ARMLLM_LOOP("group", rows * 1000 + length);
    int32x4_t sums[panels][rows];
    ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
      sums[i / rows][i % rows] = reload(kStart, 0);
    ARMLLM_UNROLL for (int k = 0; k < length; k += 16) {
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        int8x16_t block[4];
        w[j] = load_block(w[j], block);
        ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
          sums[j][r] = add_products<kCrowded>(sums[j][r], block, x, 16 * r);
      }
      x += 16 * rows;
    }
    const float32x4_t rounder = kCrowded ? vreinterpretq_f32_s32(reload(kStart, 0)) : vdupq_n_f32(kRounder);
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      const float32x4_t scale = vld1q_f32(scales[j] + 4 * g);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
        const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(sums[j][r]), rounder);
        out[j][r] = vfmaq_f32(out[j][r], sum, scale);
      }
    }
  }
  ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
    vst1q_f32(p.out + 4 * i, out[i / rows][i % rows]);
}
