// A single row on the i8mm target, several panels at a time.

#pragma once

#include "kernels/matmul_smmla_pairs.h"

// A single row of int8: SDOT of 8 elements of two columns at a time, both halves of the sum apart. length 0:
// one group of all features.
template <int panels, int length>
ARMLLM_INLINE void single_row_w8(const Product& p) {
  constexpr int kParts = length == 32 ? 1 : 2;
  const int64_t groups = p.groups;
  const int8_t *w[panels], *x = p.q;
  int32x4_t sums[panels][2][kParts];
  const float* scales[panels];
  float32x4_t out[panels];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = reinterpret_cast<const int8_t*>(p.weights + j * p.panel_bytes);
    scales[j] = of_panel(p.scales, p, j);
    out[j] = vdupq_n_f32(0);
  }
  const auto start = [&](int32x4_t first) __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int i = 0; i < 2 * panels; ++i) {
      sums[i / 2][i % 2][kParts - 1] = vdupq_n_s32(0);
      sums[i / 2][i % 2][0] = first;
    }
  };
  const auto add_16 = [&]() __attribute__((always_inline)) {
    const int8x16_t first = vld1q_s8(x), second = vld1q_s8(x + 16);
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      ARMLLM_UNROLL for (int n = 0; n < 2; ++n) {
        sums[j][n][0] = vdotq_s32(sums[j][n][0], vld1q_s8(w[j] + 16 * n), first);
        int32x4_t& sum = sums[j][n][kParts - 1];
        sum = vdotq_s32(sum, vld1q_s8(w[j] + 32 + 16 * n), second);
      }
      w[j] += 64;
    }
    x += 32;
  };
  const auto whole = [&](int j) __attribute__((always_inline)) {
    if constexpr (kParts == 1) return vpaddq_s32(sums[j][0][0], sums[j][1][0]);
    return vpaddq_s32(vaddq_s32(sums[j][0][0], sums[j][0][1]), vaddq_s32(sums[j][1][0], sums[j][1][1]));
  };
  if constexpr (length == 0) {
    start(vdupq_n_s32(0));
    for (int64_t k = 0; k < p.features; k += 16) {
      ARMLLM_LOOP("channel", 1016);
      add_16();
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      out[j] = vmulq_f32(vcvtq_f32_s32(whole(j)), vld1q_f32(scales[j]));
  } else {
    // Two neighboring sums become one: the first of them starts at what makes it a float.
    const int32x4_t first_rounders = vreinterpretq_s32_s64(vdupq_n_s64(kRounderBits));
    for (int64_t g = 0; g < groups; ++g) {
      ARMLLM_LOOP("group", 1000 + length);
      start(first_rounders);
      ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
        add_16();
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(whole(j)), vdupq_n_f32(kRounder));
        out[j] = vfmaq_f32(out[j], sum, vld1q_f32(scales[j] + 4 * g));
      }
    }
  }
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
    vst1q_f32(p.out + 8 * j, out[j]);
}

// See order_single_row. length 0: one group of all features.
template <int panels, int length>
// NOLINTNEXTLINE(readability-function-size) - its steps share the same registers
ARMLLM_INLINE void single_row_w4(const Product& p) {
  // Several panels and groups overlap, so that SMMLA need not wait for itself; else it takes more sums.
  constexpr int kParts = length == 0 ? 4 : length == 128 ? 2 : 1;
  const uint8_t* w[panels];
  const int8_t *x = p.q, *both = reinterpret_cast<const int8_t*>(p.more) + p.groups * 16;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more);
  int32x4_t sums[panels][kParts];
  float32x4_t out[panels];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = p.weights + j * p.panel_bytes;
    out[j] = vdupq_n_f32(0);
  }
  const auto start = [&]() __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int i = 0; i < kParts * panels; ++i)
      sums[i / kParts][i % kParts] = i % kParts == 0 ? reload(starts, 0) : vdupq_n_s32(0);
  };
  const auto add_16 = [&]() __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int k = 0; k < 2; ++k) {
      const int8x16_t of_bytes = vld1q_s8(x + 16 * k), of_low = vld1q_s8(both + 16 * k);
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const int8x16_t bytes = vld1q_s8(reinterpret_cast<const int8_t*>(w[j] + 16 * k));
        int32x4_t &first = sums[j][2 * k % kParts], &second = sums[j][(2 * k + 1) % kParts];
        first = vmmlaq_s32(first, bytes, of_bytes);
        second = vmmlaq_s32(second, vandq_s8(bytes, vdupq_n_s8(15)), of_low);
      }
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      w[j] += 32;
    x += 32;
    both += 32;
  };
  const auto whole = [&](int j) __attribute__((always_inline)) {
    int32x4_t sum = sums[j][0];
    ARMLLM_UNROLL for (int i = 1; i < kParts; ++i)
      sum = vaddq_s32(sum, sums[j][i]);
    return sum;
  };
  if constexpr (length == 0) {
    start();
    for (int64_t k = 0; k < p.features; k += 16) {
      ARMLLM_LOOP("channel", 1016);
      add_16();
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      out[j] = vmulq_f32(vcvtq_f32_s32(whole(j)), vld1q_f32(of_panel(p.scales, p, j)));
  } else {
    for (int64_t g = 0; g < p.groups; ++g) {
      ARMLLM_LOOP("group", 1000 + length);
      start();
      starts += 4;
      ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
        add_16();
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(whole(j)), vdupq_n_f32(kRounder));
        out[j] = vfmaq_f32(out[j], sum, vld1q_f32(of_panel(p.scales, p, j) + 4 * g));
      }
    }
  }
  alignas(16) static const float kUnits[4] = {1, 16, 1, 16};
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
    vst1q_f32(p.out + 8 * j, vmulq_f32(out[j], vld1q_f32(kUnits)));
}

template <int bits, int panels, int length>
ARMLLM_INLINE void single_row_of(const Product& p) {
  if constexpr (bits == 8) {
    single_row_w8<panels, length>(p);
  } else {
    single_row_w4<panels, length>(p);
  }
}
template <int bits, int panels>
ARMLLM_INLINE void single_row(const Product& p) {
  if (!p.grouped) return single_row_of<bits, panels, 0>(p);
  if (p.group == 32) return single_row_of<bits, panels, 32>(p);
  if (p.group == 64) return single_row_of<bits, panels, 64>(p);
  single_row_of<bits, panels, 128>(p);
}
