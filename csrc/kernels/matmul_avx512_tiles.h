// Tiles of quantized products with VPDPBUSD (AVX512-VNNI): a vector has four elements of each of a panel's
// sixteen columns, and a load puts four elements of a row beside every column. One operand has no sign:
// weights get 8 or 128 more, and the sums of a group start at what takes this away. They are exact.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone: what matmul_avx512.h brings
#define ARMLLM_SECTION "armllm.avx512_vnni"
#include "simd/primitives.h"
inline constexpr int64_t kRowChunk = 16, kRowsOfPair = 1, kPanelsOfRow = 4, kFewRows = 12, kMaxTileRows = 12;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns16x4;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }
#include "kernels/matmul.h"
#endif

inline constexpr int64_t kAhead = 1024;  // bytes; the hardware's own prefetching ends with a page

// What weights get, so that they have no sign.
template <int bits>
inline constexpr int kMore = bits == 4 ? 8 : 128;

// Few products have several sums each, so that an instruction need not wait for the one before.
constexpr ARMLLM_INLINE int parts_of(int products) { return products > 6 ? 1 : products > 2 ? 2 : 4; }

// The sum of `parts` sums.
template <int parts>
ARMLLM_INLINE __m512i whole_sum(const __m512i* sums) {
  if constexpr (parts == 1) {
    return *sums;
  } else {
    return _mm512_add_epi32(whole_sum<parts / 2>(sums), whole_sum<parts / 2>(sums + parts / 2));
  }
}

// Four elements of each column by the four at `x`.
ARMLLM_INLINE void add_four(__m512i& sum, __m512i weights, const int8_t* x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  sum = _mm512_dpbusd_epi32(sum, weights, _mm512_set1_epi32(four));
}

template <int bits, int rows, int panels = 1>
ARMLLM_INLINE void tile_of(const Product& p) {
  constexpr int kParts = parts_of(rows * panels), kVectors = 8 / bits;
  const __m512i more = _mm512_set1_epi8(static_cast<char>(kMore<bits>)), nibble = _mm512_set1_epi8(15);
  const __m512 minus = _mm512_set1_ps(-static_cast<float>(kMore<bits>));
  const uint8_t* w = p.weights;
  __m512 out[panels][rows];
  ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
    out[i / rows][i % rows] = _mm512_setzero_ps();
  for (int64_t g = 0; g < p.groups; ++g) {
    __m512i sums[panels][rows][kParts];
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      const __m512i start = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_set1_ps(p.sums[g * rows + r]), minus));
      ARMLLM_UNROLL for (int j = 0; j < panels * kParts; ++j)
        sums[j / kParts][r][j % kParts] = j % kParts == 0 ? start : _mm512_setzero_si512();
    }
    for (int64_t k = g * p.group; k < (g + 1) * p.group; k += 16) {
      ARMLLM_LOOP("group", rows * 1000 + 16);
      const Place place = place_of(k, rows, p.features);
      const int8_t* x = p.q + place.first;
      ARMLLM_UNROLL for (int i = 0; i < 4; i += kVectors) {  // four elements at a time
        ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
          const uint8_t* const line = w + j * p.panel_bytes + 64 * (i / kVectors);
          _mm_prefetch(line + kAhead, _MM_HINT_T0);
          const __m512i bytes = _mm512_loadu_si512(line);
          __m512i weights[2];
          if constexpr (bits == 4) {  // (bytes ^ 8) & 15, of either half
            weights[0] = _mm512_ternarylogic_epi32(bytes, more, nibble, 0x28);
            weights[1] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(bytes, 4), more, nibble, 0x28);
          } else {
            weights[0] = _mm512_xor_si512(bytes, more);
          }
          ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
            ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v)
              add_four(sums[j][r][(i + v) % kParts], weights[v], x + r * place.stride + 4 * (i + v));
          }
        }
      }
      w += static_cast<ptrdiff_t>(32 * bits);
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      const __m512 scales = _mm512_loadu_ps(of_panel(p.scales, p, j) + g * 16);
      ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
        out[j][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole_sum<kParts>(sums[j][r])), scales, out[j][r]);
    }
  }
  ARMLLM_UNROLL for (int i = 0; i < panels * rows; ++i)
    _mm512_storeu_ps(p.out + i * 16, out[i / rows][i % rows]);
}

// As many panels as there are.
template <int bits, int rows>
ARMLLM_INLINE void panels_tile(const Product& p) {
  constexpr int kPanels = static_cast<int>(panels_beside(rows));
  if (p.panels == kPanels) return tile_of<bits, rows, kPanels>(p);
  Product one = p;
  for (int64_t j = 0; j < p.panels; ++j) {
    tile_of<bits, rows>(one);
    one.weights += p.panel_bytes;
    one.scales = of_panel(one.scales, p, 1);
    one.out += rows * 16;
  }
}

template <int bits, int most, int rows = 1>
ARMLLM_INLINE void rows_tile(const Product& p) {
  if constexpr (rows == most) {
    panels_tile<bits, rows>(p);
  } else {
    if (p.rows == rows) return panels_tile<bits, rows>(p);
    rows_tile<bits, most, rows + 1>(p);
  }
}

// A tile of at most `most` rows.
template <int bits, int most>
ARMLLM_INLINE void vnni_tile(const Product& p) {
  rows_tile<bits, most>(p);
  add_zero_points<bits>(p, 1.0f);
}
