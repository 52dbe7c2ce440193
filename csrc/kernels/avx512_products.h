// Products of bfloat16 by VDPBF16PS, with operands as the tiles of AMX take them (amx_products.h): the pairs
// of elements of 16 columns are a vector, which meets one pair of each row. Products are exact, sums are
// float; subnormal numbers count as zero.

#pragma once

#include "kernels/avx512_lanes.h"

// sum + pairs of `columns` by the pair at `row`.
ARMLLM_INLINE __m512 add_pair(__m512 sum, __m512i columns, const bfloat16* row) {
  int32_t pair;
  memcpy(&pair, row, sizeof pair);
  return _mm512_dpbf16_ps(sum, (__m512bh)columns, (__m512bh)_mm512_set1_epi32(pair));
}

namespace tiles {

inline constexpr int64_t kDepth = 32;

// All rows by blocks of columns, `depth` elements of each in a step.
class Products {
 public:
  ARMLLM_MEMBER Products(int64_t rows, int64_t depth) : rows_(rows), depth_(depth) {}

  // All rows with n blocks of columns; `each` gets how many at a time, twice, and the first.
  template <class Each>
  ARMLLM_MEMBER void by_blocks(int64_t n, const Each& each) const {
    int64_t i = 0;
    if (rows_ <= 2) {  // sums that do not wait for each other
      for (; i + 4 <= n; i += 4) each(Number<1>{}, Number<4>{}, i);
    }
    for (; i + 2 <= n; i += 2) each(Number<1>{}, Number<2>{}, i);
    if (i < n) each(Number<1>{}, Number<1>{}, i);
  }

  // The products of all rows and C blocks of columns, summed over `steps` of the depth: they become, or are
  // added to, those in memory. Strides are in bytes.
  template <int R, int C, class Rows, class Columns>
  ARMLLM_MEMBER void sum(float* sums, int64_t stride, bool add, int64_t steps, const Rows& rows,
                         int64_t row_stride, const Columns& columns, int64_t column_stride) const {
    int64_t first = 0;
    const auto take = [&](auto m) ARMLLM_LAMBDA {
      constexpr int kRows = decltype(m)::value;
      if (C > 2 && kRows > 2) return;
      for (; first + kRows <= rows_; first += kRows) {
        some_rows<kRows, C>(first, sums + first * stride, stride, add, steps, rows, row_stride / 2, columns,
                            column_stride / 2);
      }
    };
    take(Number<8>{});
    take(Number<4>{});
    take(Number<2>{});
    take(Number<1>{});
  }

 private:
  template <int M, int C, class Rows, class Columns>
  // NOLINTNEXTLINE(readability-function-size) - both operands are a function and its stride
  ARMLLM_MEMBER void some_rows(int64_t first, float* sums, int64_t stride, bool add, int64_t steps,
                               const Rows& rows, int64_t row_elements, const Columns& columns,
                               int64_t column_elements) const {
    __m512 acc[M][C];
    ARMLLM_UNROLL for (int i = 0; i < M * C; ++i)
      acc[i / C][i % C] = add ? _mm512_loadu_ps(sums + i / C * stride + i % C * kBlock) : _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; ++step) {
      const bfloat16* row = rows(step, 0) + first * row_elements;
      const bfloat16* column[C];
      ARMLLM_UNROLL for (int c = 0; c < C; ++c)
        column[c] = columns(step, c);
      for (int64_t pair = 0; pair < depth_ / 2; ++pair, row += 2) {
        __m512i w[C];
        ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
          w[c] = _mm512_loadu_si512(column[c]);
          column[c] += column_elements;
        }
        ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
          ARMLLM_UNROLL for (int c = 0; c < C; ++c)
            acc[m][c] = add_pair(acc[m][c], w[c], row + m * row_elements);
        }
      }
    }
    ARMLLM_UNROLL for (int i = 0; i < M * C; ++i)
      _mm512_storeu_ps(sums + i / C * stride + i % C * kBlock, acc[i / C][i % C]);
  }

  int64_t rows_, depth_;
};

}  // namespace tiles
