// Quantized products with the compiler's vectors, and on x86-64 with VPMADDWD on 16-bit integers: two
// elements of 16 columns at a time.

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.scalar"
#endif
#include "simd/primitives.h"

inline constexpr int64_t kRowChunk = 16, kRowsOfPair = 1, kPanelsOfRow = 1, kFewRows = 1, kMaxTileRows = 4;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns16;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }

#include "kernels/matmul.h"

// 16 sums.
#if ARMLLM_LANES == 16
struct Sums {
  __m512i all;
};
struct Pairs {  // 16 columns of two 16-bit integers
  __m512i all;
};
ARMLLM_INLINE Sums no_sums() { return {_mm512_setzero_si512()}; }
ARMLLM_INLINE Pairs load_pairs16(const uint8_t* w) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w)))};
}
ARMLLM_INLINE void load_nibbles(const uint8_t* w, Pairs& low, Pairs& high) {
  const __m512i bytes = load_pairs16(w).all;
  low.all = _mm512_srai_epi16(_mm512_slli_epi16(bytes, 12), 12);
  high.all = _mm512_srai_epi16(bytes, 4);
}
ARMLLM_INLINE void add_products(Sums& sums, Pairs w, int32_t x) {
  sums.all = _mm512_add_epi32(sums.all, _mm512_madd_epi16(w.all, _mm512_set1_epi32(x)));
}
ARMLLM_INLINE void store_sums(int32_t* p, Sums sums) { memcpy(p, &sums, sizeof sums); }
#elif ARMLLM_LANES == 8
struct Sums {
  __m256i half[2];
};
struct Pairs {
  __m256i half[2];
};
ARMLLM_INLINE Sums no_sums() { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
ARMLLM_INLINE Pairs load_pairs16(const uint8_t* w) {
  const __m128i* p = reinterpret_cast<const __m128i*>(w);
  return {{_mm256_cvtepi8_epi16(_mm_loadu_si128(p)), _mm256_cvtepi8_epi16(_mm_loadu_si128(p + 1))}};
}
ARMLLM_INLINE void load_nibbles(const uint8_t* w, Pairs& low, Pairs& high) {
  const Pairs bytes = load_pairs16(w);
  for (int i = 0; i < 2; ++i) {
    low.half[i] = _mm256_srai_epi16(_mm256_slli_epi16(bytes.half[i], 12), 12);
    high.half[i] = _mm256_srai_epi16(bytes.half[i], 4);
  }
}
ARMLLM_INLINE void add_products(Sums& sums, Pairs w, int32_t x) {
  for (int i = 0; i < 2; ++i) {
    sums.half[i] = _mm256_add_epi32(sums.half[i], _mm256_madd_epi16(w.half[i], _mm256_set1_epi32(x)));
  }
}
ARMLLM_INLINE void store_sums(int32_t* p, Sums sums) { memcpy(p, &sums, sizeof sums); }
#else
struct Sums {
  int32_t all[16];
};
struct Pairs {
  int8_t all[32];
};
ARMLLM_INLINE Sums no_sums() { return {}; }
ARMLLM_INLINE Pairs load_pairs16(const uint8_t* w) {
  Pairs pairs;
  memcpy(pairs.all, w, sizeof pairs);
  return pairs;
}
ARMLLM_INLINE void load_nibbles(const uint8_t* w, Pairs& low, Pairs& high) {
  for (int i = 0; i < 32; ++i) {
    low.all[i] = static_cast<int8_t>(((w[i] & 15) ^ 8) - 8);
    high.all[i] = static_cast<int8_t>((w[i] >> 4 ^ 8) - 8);
  }
}
// x holds two integers, the first in its low half.
ARMLLM_INLINE void add_products(Sums& sums, Pairs w, int32_t x) {
  const int32_t first = static_cast<int16_t>(x), second = x >> 16;
  for (int n = 0; n < 16; ++n) sums.all[n] += w.all[2 * n] * first + w.all[2 * n + 1] * second;
}
ARMLLM_INLINE void store_sums(int32_t* p, Sums sums) { memcpy(p, sums.all, sizeof sums.all); }
#endif

ARMLLM_INLINE int32_t two(const int8_t* x) {
  return static_cast<int32_t>(static_cast<uint32_t>(x[0] & 0xffff) | static_cast<uint32_t>(x[1]) << 16);
}

template <int bits, int rows>
ARMLLM_INLINE void plain_tile(const Product& p) {
  float out[rows][16] = {};
  const uint8_t* w = p.weights;
  for (int64_t g = 0; g < p.groups; ++g) {
    Sums sums[rows];
    for (int r = 0; r < rows; ++r) sums[r] = no_sums();
    for (int64_t k = g * p.group; k < (g + 1) * p.group; k += kRowChunk) {
      const int8_t* x = p.q + k * rows;
      for (int64_t i = 0; i < kRowChunk; i += 8 / bits * 2) {
        Pairs first, second;
        if constexpr (bits == 4) {
          load_nibbles(w, first, second);
        } else {
          first = load_pairs16(w);
        }
        w += 32;
        ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
          add_products(sums[r], first, two(x + r * kRowChunk + i));
          if constexpr (bits == 4) add_products(sums[r], second, two(x + r * kRowChunk + i + 2));
        }
      }
    }
    for (int r = 0; r < rows; ++r) {
      int32_t whole[16];
      store_sums(whole, sums[r]);
      for (int n = 0; n < 16; ++n) out[r][n] += static_cast<float>(whole[n]) * p.scales[g * 16 + n];
    }
  }
  memcpy(p.out, out, sizeof out);
}

template <int bits>
ARMLLM_INLINE void plain_rows(const Product& p) {
  switch (p.rows) {
    case 1:
      return plain_tile<bits, 1>(p);
    case 2:
      return plain_tile<bits, 2>(p);
    case 3:
      return plain_tile<bits, 3>(p);
    default:
      return plain_tile<bits, 4>(p);
  }
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) {
  plain_rows<8>(p);
  add_zero_points<8>(p, 1.0f);
}
static ARMLLM_ENTRY void w4a8_tile(const Product& p) {
  plain_rows<4>(p);
  add_zero_points<4>(p, 1.0f);
}

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, no_more_bytes, nothing_more)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 1.0f, w4a8_tile, kNoDecoder, no_more_bytes, nothing_more)
