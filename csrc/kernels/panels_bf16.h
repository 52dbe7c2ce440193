// Products with bfloat16 weights in panels by BFMMLA: a vector of a panel is two columns by four elements of
// in_features, as the instruction takes it, so that nothing is permuted and one stream of memory feeds 16
// columns. Every result is one chain of sums in the order of in_features, in every tile the same.

#pragma once

#include "kernels/bfmmla_rows.h"
#include "kernels/dense.h"

struct PanelsBfmmla : BfmmlaRows<6> {
  static constexpr int64_t kTileRows = 6, kColumns = kPanelColumns, kFour = 4 * kColumns;
  static constexpr int kPairs = kColumns / 2;
  // A tile's activations of that many features, 12 KiB, stay in the first-level cache for panel after panel,
  // while the 32 KiB of a panel go through it.
  static constexpr int64_t kFeatures = 1024, kPanelsTogether = 8;

  template <class T>
  ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
    return panel_elements(s.in_features) * static_cast<int64_t>(sizeof(T));
  }

  // Sums of `count` panels with `pairs` pairs of rows: two columns of two rows in a vector.
  template <int pairs, int count>
  struct Sums {
    float32x4_t of[count][kPairs][pairs];
  };

  // Four features more: x is a vector per pair of rows, 16 elements apart.
  template <int pairs, int count>
  ARMLLM_INLINE void add_four(const bfloat16* x, const bfloat16* w, int64_t panel,
                              float32x4_t (&sums)[count][kPairs][pairs]) {
    bfloat16x8_t rows[pairs];
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
      rows[r] = operand(x + 16 * r);
    ARMLLM_UNROLL for (int p = 0; p < count; ++p) {
      ARMLLM_UNROLL for (int c = 0; c < kPairs; ++c) {
        const bfloat16x8_t columns = operand(w + p * panel + 8 * c);
        ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
          sums[p][c][r] = vbfmmlaq_f32(sums[p][c][r], rows[r], columns);
      }
    }
  }

  // Features `begin` to `end` more. In memory the sums only wait: an index that is not constant would keep
  // them there.
  template <int pairs, int count>
  ARMLLM_INLINE void add_features(const MatmulArgs& a, int64_t first_row, int64_t first_panel, int64_t begin,
                                  int64_t end, Sums<pairs, count>& waiting) {
    const int64_t panel = panel_elements(a.shape.in_features);
    const bfloat16* x = tile(a, first_row) + begin * 2 * pairs;
    const bfloat16* w = static_cast<const bfloat16*>(a.weight) + first_panel * panel + begin * kColumns;
    float32x4_t sums[count][kPairs][pairs];
    ARMLLM_UNROLL for (int p = 0; p < count; ++p) {
      ARMLLM_UNROLL for (int c = 0; c < kPairs; ++c) {
        ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
          sums[p][c][r] = begin == 0 ? vdupq_n_f32(0) : waiting.of[p][c][r];
      }
    }
    int64_t k = begin;
    for (; k + 4 < end; k += kChunk) {
      ARMLLM_LOOP("panels", 2 * pairs);
      add_four<pairs, count>(x, w, panel, sums);
      add_four<pairs, count>(x + 8, w + kFour, panel, sums);
      x += 16 * pairs;
      w += 2 * kFour;
    }
    if (k < end) add_four<pairs, count>(x, w, panel, sums);
    ARMLLM_UNROLL for (int p = 0; p < count; ++p) {
      ARMLLM_UNROLL for (int c = 0; c < kPairs; ++c) {
        ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
          waiting.of[p][c][r] = sums[p][c][r];
      }
    }
  }

  template <int pairs, int count>
  ARMLLM_INLINE void put_sums(const MatmulArgs& a, int64_t first_row, int64_t first_panel,
                              const Sums<pairs, count>& sums) {
    const int64_t column = first_panel * kColumns, there = a.shape.out_features - column;
    for (int r = 0; r < 2 * pairs && first_row + r < a.rows; ++r) {
      float row[count * kColumns];
      for (int i = 0; i < count * kPairs; ++i) {
        float four[4];
        vst1q_f32(four, sums.of[i / kPairs][i % kPairs][r / 2]);
        memcpy(row + 2 * i, four + r % 2 * 2, 2 * sizeof(float));
      }
      dense::put_sums<bfloat16>(a, first_row + r, column, row,
                                there < count * kColumns ? there : count * kColumns);
    }
  }

  // Panels first to last, at most kPanelsTogether, a block of features after the other.
  template <int pairs, int count>
  ARMLLM_INLINE void tile_by_panels(const MatmulArgs& a, int64_t first_row, int64_t first, int64_t last) {
    ARMLLM_BLOCK(16, kFeatures, kPanelsTogether, 0);
    Sums<pairs, count> waiting[kPanelsTogether / count];
    const int64_t n = a.shape.in_features;
    for (int64_t begin = 0; begin == 0 || begin < n; begin += kFeatures) {
      const int64_t end = begin + kFeatures < n ? begin + kFeatures : n;
      for (int64_t panel = first; panel < last; panel += count) {
        Sums<pairs, count>& sums = waiting[(panel - first) / count];
        add_features<pairs, count>(a, first_row, panel, begin, end, sums);
        if (end == n) put_sums<pairs, count>(a, first_row, panel, sums);
      }
    }
  }

  template <int pairs, int count>
  ARMLLM_INLINE void tile_by_all(const MatmulArgs& a, int64_t first_row, int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; panel += kPanelsTogether) {
      const int64_t last = panel + kPanelsTogether < end ? panel + kPanelsTogether : end;
      const int64_t whole = panel + (last - panel) / count * count;
      if (whole > panel) tile_by_panels<pairs, count>(a, first_row, panel, whole);
      if (whole < last) tile_by_panels<pairs, 1>(a, first_row, whole, last);
    }
  }

  template <class>
  ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                              int64_t panel_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const int64_t first = tile * kTileRows;
      switch ((a.rows - first + 1) / 2) {
        case 1:
          tile_by_all<1, 3>(a, first, panel_begin, panel_end);
          break;
        case 2:
          tile_by_all<2, 1>(a, first, panel_begin, panel_end);
          break;
        default:
          tile_by_all<3, 1>(a, first, panel_begin, panel_end);
      }
    }
  }
};
