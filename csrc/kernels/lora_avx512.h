// lora.h for bfloat16 with VDPBF16PS: pairs of neighbors of A and x, and pairs of B's rows, which two
// instructions make of 32 columns. Tiles of four rows have sixteen sums. Subnormal numbers count as zero.

#pragma once

#include "kernels/avx512_lanes.h"
#include "kernels/lora.h"

namespace lora {

inline constexpr int64_t kPairColumns = 32;  // of a vector of bfloat16

// The first n elements of a vector, zeros behind them.
ARMLLM_INLINE __m512i load_first_pairs(const bfloat16* p, int64_t n) {
  if (n >= kPairColumns) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16((1u << n) - 1, p);
}

// 32 columns as floats, in the order in which unpacking two rows of B leaves them: four of each eight.
ARMLLM_INLINE void load_columns(const bfloat16* y, __m512& first, __m512& second) {
  const __m512i all = _mm512_loadu_si512(y), none = _mm512_setzero_si512();
  first = (__m512)_mm512_unpacklo_epi16(none, all);
  second = (__m512)_mm512_unpackhi_epi16(none, all);
}
ARMLLM_INLINE void store_columns(bfloat16* y, __m512 first, __m512 second) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  _mm512_storeu_si512(y, _mm512_permutexvar_epi64(order, (__m512i)_mm512_cvtne2ps_pbh(second, first)));
}

// Floats that are numbers of bfloat16, as 16 pairs of which the first n elements are there.
ARMLLM_INLINE __m512i load_low(const float* low, int64_t n) {
  const __m512 first = _mm512_maskz_loadu_ps(first_lanes(n), low);
  const __m512 second =
      n > kBlock ? _mm512_maskz_loadu_ps(first_lanes(n - kBlock), low + kBlock) : _mm512_setzero_ps();
  return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

template <>
struct Tiles<bfloat16> {
  static constexpr int kRows = 4;
  static constexpr int kVectors = 4;  // of sums of a row

  // The sums of four vectors.
  ARMLLM_INLINE __m128 add_up(const __m512 (&s)[kFactors]) {
    const __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1]));
    const __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3]));
    const __m512d a = (__m512d)low, b = (__m512d)high;
    const __m512 four = _mm512_add_ps((__m512)_mm512_unpacklo_pd(a, b), (__m512)_mm512_unpackhi_pd(a, b));
    const __m256 two = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    return _mm_add_ps(_mm256_castps256_ps128(two), _mm256_extractf128_ps(two, 1));
  }

  // low[first + i] = a[i] . x for `count` rows of a, up to four. `ahead`: to what is needed next.
  template <int rows>
  ARMLLM_INLINE void shrink(const bfloat16* a, int64_t n, int64_t count, int64_t ahead,
                            const Row<bfloat16> (&of)[rows], int64_t first) {
    const bfloat16* factors[kFactors];
    ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f)
      factors[f] = a + (f < count ? f * n : 0);
    __m512 sums[rows][kFactors];
    ARMLLM_UNROLL for (int i = 0; i < rows * kFactors; ++i)
      sums[i / kFactors][i % kFactors] = _mm512_setzero_ps();
    for (int64_t k = 0; k < n; k += kPairColumns) {
      __m512i x[rows];
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        x[r] = load_first_pairs(of[r].x + k, n - k);
      ARMLLM_UNROLL for (int f = 0; f < kFactors; ++f) {
        __builtin_prefetch(factors[f] + k + ahead, 0, 2);
        const __m512i w = load_first_pairs(factors[f] + k, n - k);
        ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
          sums[r][f] = _mm512_dpbf16_ps(sums[r][f], (__m512bh)w, (__m512bh)x[r]);
      }
    }
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      alignas(16) float of_row[kFactors];
      _mm_store_ps(of_row, add_up(sums[r]));
      put_low(of[r], first, of_row, count);
    }
  }

  // y += low . b for four vectors of columns from `column` on.
  template <int rows>
  ARMLLM_INLINE void expand(const bfloat16* b, int64_t stride, int64_t rank, int64_t ahead,
                            const Row<bfloat16> (&of)[rows], int64_t column) {
    __m512 sums[rows][kVectors];
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors / 2; ++i) {
      const int r = i / (kVectors / 2), half = i % (kVectors / 2);
      load_columns(of[r].y + column + half * kPairColumns, sums[r][2 * half], sums[r][2 * half + 1]);
    }
    for (int64_t at = 0; at < rank; at += kPairColumns) {
      alignas(64) int32_t low[rows][kBlock];
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        _mm512_store_si512(low[r], load_low(of[r].low + at, rank - at));
      const int64_t pairs = rank - at < kPairColumns ? (rank - at + 1) / 2 : kBlock;
      for (int64_t pair = 0; pair < pairs; ++pair, b += 2 * stride) {
        const bool is_pair = at + 2 * pair + 1 < rank;
        ARMLLM_UNROLL for (int half = 0; half < kVectors / 2; ++half) {
          const bfloat16* const one = b + half * kPairColumns;
          const __m512i a = _mm512_loadu_si512(one);
          const __m512i other = is_pair ? _mm512_loadu_si512(one + stride) : _mm512_setzero_si512();
          __builtin_prefetch(one + ahead, 0, 2);
          __builtin_prefetch(one + stride + ahead, 0, 2);
          const auto first = (__m512bh)_mm512_unpacklo_epi16(a, other);
          const auto second = (__m512bh)_mm512_unpackhi_epi16(a, other);
          ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
            const auto share = (__m512bh)_mm512_set1_epi32(low[r][pair]);
            sums[r][2 * half] = _mm512_dpbf16_ps(sums[r][2 * half], first, share);
            sums[r][2 * half + 1] = _mm512_dpbf16_ps(sums[r][2 * half + 1], second, share);
          }
        }
      }
    }
    ARMLLM_UNROLL for (int i = 0; i < rows * kVectors / 2; ++i) {
      const int r = i / (kVectors / 2), half = i % (kVectors / 2);
      store_columns(of[r].y + column + half * kPairColumns, sums[r][2 * half], sums[r][2 * half + 1]);
    }
  }
};

}  // namespace lora
