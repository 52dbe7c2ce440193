// lora.h for bfloat16 with BFDOT: pairs of neighbors of A and x, and pairs of B's rows, which two
// permutations make of 16 elements. Nothing is widened but y, in the order of its columns. Tiles of four rows
// have sixteen sums, as many as BFDOT's latency needs.

#pragma once

#include "kernels/bfmmla_rows.h"
#include "kernels/lora.h"

namespace lora {

template <>
struct Tiles<bfloat16> {
  static constexpr int kRows = 4;
  static constexpr int64_t kEight = 8;  // elements of a vector
  static constexpr int kVectors = 4;    // of sums of a row

  // low[first + i] = a[i] . x for `count` rows of a, up to four. `ahead`: to what is needed next.
  template <int rows>
  ARMLLM_INLINE void shrink(const bfloat16* a, int64_t n, int64_t count, int64_t ahead,
                            const Row<bfloat16> (&of)[rows], int64_t first) {
    const bfloat16* factors[kFactors];
    ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f)
      factors[f] = a + (f < count ? f * n : 0);
    float32x4_t sums[rows][kFactors];
    ARMLLM_UNROLL for (int i = 0; i < rows * kFactors; ++i)
      sums[i / kFactors][i % kFactors] = vdupq_n_f32(0);
    const auto add_eight = [&](const auto& read, int64_t k) ARMLLM_LAMBDA {
      bfloat16x8_t x[rows];
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        x[r] = read(of[r].x + k);
      ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f) {
        const bfloat16x8_t w = read(factors[f] + k);
        ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
          sums[r][f] = vbfdotq_f32(sums[r][f], w, x[r]);
      }
    };
    int64_t k = 0;
    for (; k + 2 * kEight <= n; k += 2 * kEight) {
      ARMLLM_LOOP("shrink", rows);
      ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f)
        __builtin_prefetch(factors[f] + k + ahead, 0, 2);
      add_eight(operand, k);
      add_eight(operand, k + kEight);
    }
    for (; k < n; k += kEight) {
      const auto read_rest = [&](const bfloat16* p) ARMLLM_LAMBDA {
        bfloat16 rest[kEight] = {};
        for (int64_t i = 0; i < kEight && k + i < n; ++i) rest[i] = p[i];
        return operand(rest);
      };
      add_eight(read_rest, k);
    }
    for (int r = 0; r < rows; ++r) {
      float of_row[kFactors];
      ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f)
        of_row[f] = reduce_add(sums[r][f]);
      put_low(of[r], first, of_row, count);
    }
  }

  // Pair `pair` of low by each pair of weights. Of the intrinsic clang makes a copy of that pair in every
  // lane, which costs as much as a product.
  template <int pair>
  ARMLLM_INLINE void dot(float32x4_t& sum, uint16x8_t weights, uint16x8_t low) {
    __asm__("bfdot %0.4s, %1.8h, %2.2h[%3]" : "+w"(sum) : "w"(weights), "w"(low), "i"(pair));
  }
  // Two rows of B more, `other` or zeros: pair `pair` of each vector of low.
  template <int pair, int rows>
  ARMLLM_INLINE void add_pair(const bfloat16* one, const bfloat16* other, const uint16x8_t (&low)[rows],
                              float32x4_t (&sums)[rows][kVectors]) {
    ARMLLM_UNROLL for (int half = 0; half < kVectors / 2; ++half) {
      const uint16x8_t a = vld1q_u16(&one[kEight * half].bits);
      const uint16x8_t b = other == nullptr ? vdupq_n_u16(0) : vld1q_u16(&other[kEight * half].bits);
      const uint16x8_t first = vzip1q_u16(a, b), second = vzip2q_u16(a, b);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
        dot<pair>(sums[r][2 * half], first, low[r]);
        dot<pair>(sums[r][2 * half + 1], second, low[r]);
      }
    }
  }
  // Eight floats that are numbers of bfloat16.
  ARMLLM_INLINE uint16x8_t narrow(const float* low) {
    const uint16x8_t first = vreinterpretq_u16_f32(vld1q_f32(low));
    const uint16x8_t second = vreinterpretq_u16_f32(vld1q_f32(low + kLanes));
    return vuzp2q_u16(first, second);
  }

  // y += low . b for four vectors of columns from `column` on.
  template <int rows>
  ARMLLM_INLINE void expand(const bfloat16* b, int64_t stride, int64_t rank, int64_t ahead,
                            const Row<bfloat16> (&of)[rows], int64_t column) {
    float32x4_t sums[rows][kVectors];
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors / 2; ++i) {
      const int r = i / (kVectors / 2), half = i % (kVectors / 2);
      const uint16x8_t y = vld1q_u16(&of[r].y[column + kEight * half].bits), none = vdupq_n_u16(0);
      sums[r][2 * half] = vreinterpretq_f32_u16(vzip1q_u16(none, y));
      sums[r][2 * half + 1] = vreinterpretq_f32_u16(vzip2q_u16(none, y));
    }
    uint16x8_t low[rows];
    int64_t at = 0;
    for (; at + kEight <= rank; at += kEight, b += kEight * stride) {
      ARMLLM_LOOP("expand", rows);
      ARMLLM_UNROLL for (int i = 0; i < kEight; ++i)
        __builtin_prefetch(b + i * stride + ahead, 0, 2);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        low[r] = narrow(of[r].low + at);
      add_pair<0>(b, b + stride, low, sums);
      add_pair<1>(b + 2 * stride, b + 3 * stride, low, sums);
      add_pair<2>(b + 4 * stride, b + 5 * stride, low, sums);
      add_pair<3>(b + 6 * stride, b + 7 * stride, low, sums);
    }
    for (; at < rank; at += 2, b += 2 * stride) {
      const bool paired = at + 1 < rank;
      for (int r = 0; r < rows; ++r) {
        const float pair[kEight] = {of[r].low[at], paired ? of[r].low[at + 1] : 0};
        low[r] = narrow(pair);
      }
      add_pair<0>(b, paired ? b + stride : nullptr, low, sums);
    }
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors / 2; ++i) {
      const int r = i / (kVectors / 2), half = i % (kVectors / 2);
      vst1q_u16(&of[r].y[column + kEight * half].bits,
                vcombine_u16(bf16_half(sums[r][2 * half]), bf16_half(sums[r][2 * half + 1])));
    }
  }
};

}  // namespace lora
