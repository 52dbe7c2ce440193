// dense.h for bfloat16 with BFMMLA: two rows of activations by two of weights, four elements of each. The
// weights lie as in a checkpoint, and are put into that order on the way, by two permutations for each 16.

#pragma once

#include "kernels/bfmmla_rows.h"
#include "kernels/dense.h"

struct DenseBfmmla : BfmmlaRows<8> {
  static constexpr int64_t kTileRows = 8, kColumns = 8;

  template <class T>
  ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
    return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
  }

  // Two weights' rows of 8 become two operands.
  ARMLLM_INLINE void interleave(uint16x8_t one, uint16x8_t other, bfloat16x8_t& low, bfloat16x8_t& high) {
    const uint64x2_t a = vreinterpretq_u64_u16(one), b = vreinterpretq_u64_u16(other);
    low = vreinterpretq_bf16_u64(vtrn1q_u64(a, b));
    high = vreinterpretq_bf16_u64(vtrn2q_u64(a, b));
  }

  template <int pairs>
  ARMLLM_INLINE void tile_by_panel(const MatmulArgs& a, int64_t first_row, int64_t column) {
    constexpr int kPairs = kColumns / 2;
    const int64_t n = a.shape.in_features, last = a.shape.out_features - 1;
    const bfloat16* x = tile(a, first_row);
    const bfloat16* w[kColumns];
    ARMLLM_UNROLL for (int64_t c = 0; c < kColumns; ++c)
      w[c] = static_cast<const bfloat16*>(a.weight) + (column + c < last ? column + c : last) * n;
    float32x4_t sums[kPairs][pairs];
    ARMLLM_UNROLL for (int i = 0; i < kPairs * pairs; ++i)
      sums[i / pairs][i % pairs] = vdupq_n_f32(0);
    const auto add_products = [&](int c, uint16x8_t one, uint16x8_t other) __attribute__((always_inline)) {
      bfloat16x8_t low, high;
      interleave(one, other, low, high);
      ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
        sums[c][r] = vbfmmlaq_f32(sums[c][r], operand(x + 16 * r), low);
        sums[c][r] = vbfmmlaq_f32(sums[c][r], operand(x + 16 * r + 8), high);
      }
    };
    int64_t k = 0;
    for (; k + kChunk <= n; k += kChunk) {
      ARMLLM_LOOP("dense", 2 * pairs);
      ARMLLM_UNROLL for (int c = 0; c < kPairs; ++c)
        add_products(c, vld1q_u16(&w[2 * c][k].bits), vld1q_u16(&w[2 * c + 1][k].bits));
      x += 16 * pairs;
    }
    if (k < n) {
      for (int c = 0; c < kPairs; ++c) {
        uint16_t rows[2][kChunk] = {};
        for (int64_t i = 0; k + i < n; ++i) {
          rows[0][i] = w[2 * c][k + i].bits;
          rows[1][i] = w[2 * c + 1][k + i].bits;
        }
        add_products(c, vld1q_u16(rows[0]), vld1q_u16(rows[1]));
      }
    }
    for (int r = 0; r < 2 * pairs && first_row + r < a.rows; ++r) {
      float row[kColumns];
      for (int c = 0; c < kPairs; ++c) {
        float four[4];
        vst1q_f32(four, sums[c][r / 2]);
        memcpy(row + 2 * c, four + r % 2 * 2, 2 * sizeof(float));
      }
      dense::put_sums<bfloat16>(a, first_row + r, column, row,
                                last + 1 - column < kColumns ? last + 1 - column : kColumns);
    }
  }

  template <class>
  ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                              int64_t panel_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const int64_t first = tile * kTileRows;
      for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        switch ((a.rows - first + 1) / 2) {
          case 1:
            tile_by_panel<1>(a, first, panel * kColumns);
            break;
          case 2:
            tile_by_panel<2>(a, first, panel * kColumns);
            break;
          case 3:
            tile_by_panel<3>(a, first, panel * kColumns);
            break;
          default:
            tile_by_panel<4>(a, first, panel * kColumns);
        }
      }
    }
  }
};
