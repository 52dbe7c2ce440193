// Weights of 4 bits with SDOT by lane. A byte holds two of eight columns: an integer of 16 * high + (low +
// 8). Products are made of the bytes as they are and of their low halves, which a mask gives: the second sum
// belongs to the low column, and the first minus the second to the high one, 16 times too large.

#pragma once

#include "kernels/matmul_sdot_int8.h"

// What both sums of a group start at, [groups, rows of the tile, 4] per tile: it takes the offset of the low
// halves off again.
template <int bits>
ARMLLM_INLINE int64_t starts_bytes(const WeightShape& s, int64_t rows) {
  return bits == 4 ? rows * weight_groups(s) * 16 : 0;
}

template <int bits>
ARMLLM_INLINE void prepare(const MatmulArgs& a, int64_t begin, int64_t end) {
  if (bits == 8) return;
  const WeightShape& s = a.shape;
  const Activations x = Activations::at(a.activations, s, a.rows);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int32_t first = s.group_size == 0 ? 0 : kRounderBits;
  const int64_t groups = weight_groups(s);
  for (int64_t r = begin; r < end; ++r) {
    const int64_t tile = tiling.tile_of(r), top = tiling.first_row(tile),
                  rows = tiling.first_row(tile + 1) - top;
    const float* sums = x.sums + top * groups + (r - top);
    int32_t* to = reinterpret_cast<int32_t*>(x.more) + (top * groups + (r - top)) * 4;
    for (int64_t g = 0; g < groups; ++g) {
      vst1q_s32(to, vdupq_n_s32(first - 8 * static_cast<int32_t>(sums[g * rows])));
      to += rows * 4;
    }
  }
}

// 8 elements of eight columns, four by four, by those of a row at `x` + `offset`.
template <bool crowded>
ARMLLM_INLINE void add_products_of_pairs(int32x4_t (&sums)[2], const int8x16_t (&bytes)[2],
                                         const int8x16_t (&low)[2], const int8_t* x, int offset) {
  int8x8_t row;
  if constexpr (crowded) {
    __asm__ volatile(
        "ldr %d0, [%7, %8]\n\tsdot %1.4s, %3.16b, %0.4b[0]\n\tsdot %2.4s, %5.16b, %0.4b[0]\n\t"
        "sdot %1.4s, %4.16b, %0.4b[1]\n\tsdot %2.4s, %6.16b, %0.4b[1]"
        : "=&w"(row), "+w"(sums[0]), "+w"(sums[1])
        : "w"(bytes[0]), "w"(bytes[1]), "w"(low[0]), "w"(low[1]), "r"(x), "i"(offset));
  } else {
    row = vld1_s8(x + offset);
    sums[0] = vdotq_lane_s32(sums[0], bytes[0], row, 0);
    sums[1] = vdotq_lane_s32(sums[1], low[0], row, 0);
    sums[0] = vdotq_lane_s32(sums[0], bytes[1], row, 1);
    sums[1] = vdotq_lane_s32(sums[1], low[1], row, 1);
  }
}

// Neoverse-N1's vector units are what tiles of several rows wait for, while its others have slots left: of
// the eight vectors of bytes that 32 elements take, so many are masked by general registers, by way of
// memory.
template <int rows, int length>
inline constexpr int kMaskedAside = length == 0 ? (rows > 5 && rows < 12) * 2
                                    : rows == 5 ? 3
                                    : rows == 4 ? 2
                                                : 0;
template <int n>
struct Number {
  static constexpr int value = n;
};
ARMLLM_INLINE void mask_aside(uint8_t (&to)[16], const uint8_t* w, int offset) {
  uint64_t first, second;
  __asm__ volatile(
      "ldp %0, %1, [%3, %4]\n\tand %0, %0, #0x0f0f0f0f0f0f0f0f\n\tand %1, %1, #0x0f0f0f0f0f0f0f0f\n\t"
      "stp %0, %1, [%5]"
      : "=&r"(first), "=&r"(second), "=m"(to)
      : "r"(w), "i"(offset), "r"(to));
}

// As reload, of 32 bytes.
ARMLLM_INLINE void reload_two(const void* p, int offset, int32x4_t& first, int32x4_t& second) {
  __asm__ volatile("ldp %q0, %q1, [%2, %3]" : "=&w"(first), "=w"(second) : "r"(p), "i"(offset));
}

// 16 elements of eight columns by those of a row.
ARMLLM_INLINE void add_products_of_pairs(int32x4_t (&sums)[2], const int8x16_t (&bytes)[4],
                                         const int8x16_t (&low)[4], const int8_t* x, int offset) {
  int8x16_t row;
  __asm__ volatile(
      "ldr %q0, [%11, %12]\n\tsdot %1.4s, %3.16b, %0.4b[0]\n\tsdot %2.4s, %7.16b, %0.4b[0]\n\t"
      "sdot %1.4s, %4.16b, %0.4b[1]\n\tsdot %2.4s, %8.16b, %0.4b[1]\n\t"
      "sdot %1.4s, %5.16b, %0.4b[2]\n\tsdot %2.4s, %9.16b, %0.4b[2]\n\t"
      "sdot %1.4s, %6.16b, %0.4b[3]\n\tsdot %2.4s, %10.16b, %0.4b[3]"
      : "=&w"(row), "+w"(sums[0]), "+w"(sums[1])
      : "w"(bytes[0]), "w"(bytes[1]), "w"(bytes[2]), "w"(bytes[3]), "w"(low[0]), "w"(low[1]), "w"(low[2]),
        "w"(low[3]), "r"(x), "i"(offset));
}

// length 0: one group of all features.
template <int rows, int panels, int length>
// NOLINTNEXTLINE(readability-function-size) - its steps share the same registers
ARMLLM_INLINE void pairs_tile(const Product& p) {
  constexpr bool kCrowded = rows > 4;
  constexpr int kAside = kMaskedAside<rows, length>;
  const uint8_t* w[panels];
  const int8_t* x = p.q;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more) + p.first_row * p.groups * 4;
  int32x4_t sums[panels][rows][2];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
    w[j] = p.weights + j * p.panel_bytes;
  const auto start = [&]() __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i) {
      if (rows > 1 && i % rows % 2 == 1) continue;
      ARMLLM_UNROLL for (int n = 0; n < 2; ++n) {
        if (rows > 1 && i % rows + 1 < rows) {
          reload_two(starts, 16 * (i % rows), sums[i / rows][i % rows][n], sums[i / rows][i % rows + 1][n]);
        } else {
          sums[i / rows][i % rows][n] = reload(starts, 16 * (i % rows));
        }
      }
    }
    starts += 4 * rows;
  };
  const auto add_16 = [&](auto aside) __attribute__((always_inline)) {
    if constexpr (kAside != 0) {
      alignas(16) uint8_t masked[2][16];
      constexpr int kHere = decltype(aside)::value;
      int8x16_t bytes[4], low[4];
      ARMLLM_UNROLL for (int i = 0; i < kHere; ++i)
        mask_aside(masked[i], w[0], 16 * (3 - i));
      ARMLLM_UNROLL for (int i = 0; i < 4; ++i) {
        bytes[i] = vld1q_s8(reinterpret_cast<const int8_t*>(w[0] + 16 * i));
        low[i] = i < 4 - kHere ? vandq_s8(bytes[i], vdupq_n_s8(15))
                               : vreinterpretq_s8_s32(reload(masked[3 - i], 0));
      }
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        add_products_of_pairs(sums[0][r], bytes, low, x, 16 * r);
    } else {
      ARMLLM_UNROLL for (int k = 0; k < 2; ++k) {
        ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
          int8x16_t bytes[2], low[2];
          ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
            bytes[i] = vld1q_s8(reinterpret_cast<const int8_t*>(w[j] + 32 * k + 16 * i));
            low[i] = vandq_s8(bytes[i], vdupq_n_s8(15));
          }
          ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
            add_products_of_pairs<kCrowded>(sums[j][r], bytes, low, x, 16 * r + 8 * k);
        }
      }
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      w[j] += 64;
    x += 16 * rows;
  };
  const auto keep = [&](int i, float32x4_t high, float32x4_t low) __attribute__((always_inline)) {
    vst1q_f32(p.out + 8 * i, high);
    vst1q_f32(p.out + 8 * i + 4, vmulq_n_f32(low, 16.0f));
  };
  if constexpr (length == 0) {
    start();
    for (int64_t k = 0; k < p.features; k += 16) {
      ARMLLM_LOOP("channel", rows * 1000 + 16);
      add_16(Number<kAside / 2>{});
    }
    ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i) {
      const float* scales = of_panel(p.scales, p, i / rows);
      const int32x4_t(&sum)[2] = sums[i / rows][i % rows];
      keep(i, vmulq_f32(vcvtq_f32_s32(vsubq_s32(sum[0], sum[1])), vld1q_f32(scales)),
           vmulq_f32(vcvtq_f32_s32(sum[1]), vld1q_f32(scales + 4)));
    }
  } else {
    float32x4_t out[panels][rows][2];
    ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
      out[i / rows][i % rows][0] = out[i / rows][i % rows][1] = vdupq_n_f32(0);
    const float* scales[panels];
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      scales[j] = of_panel(p.scales, p, j);
    const int64_t groups = p.groups;
    for (int64_t g = 0; g < groups; ++g) {
      ARMLLM_LOOP("group", rows * 1000 + length);
      start();
      ARMLLM_UNROLL for (int k = 0; k < length; k += 32) {
        add_16(Number<kAside / 2>{});
        add_16(Number<(kAside + 1) / 2>{});
      }
      const float32x4_t rounder = kCrowded ? vreinterpretq_f32_s32(reload(kStart, 0)) : vdupq_n_f32(kRounder);
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const float32x4_t high = vld1q_f32(scales[j]), low = vld1q_f32(scales[j] + 4);
        scales[j] += 8;
        ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
          const float32x4_t whole = vreinterpretq_f32_s32(sums[j][r][0]),
                            half = vreinterpretq_f32_s32(sums[j][r][1]);
          out[j][r][0] = vfmaq_f32(out[j][r][0], vsubq_f32(whole, half), high);
          out[j][r][1] = vfmaq_f32(out[j][r][1], vsubq_f32(half, rounder), low);
        }
      }
    }
    ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
      keep(i, out[i / rows][i % rows][0], out[i / rows][i % rows][1]);
  }
}
