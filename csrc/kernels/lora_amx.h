// lora.h for bfloat16 with the tiles of AMX, for any number of rows: the first product as that of
// dense_amx.h, where up to 16 rows of A meet the pairs of up to 16 rows of x; the second one as rows of `low`
// by pairs of B's rows. TDPBF16PS takes subnormal numbers for zero.

#pragma once

#include "kernels/dense_amx.h"
#include "kernels/lora_avx512.h"

namespace lora_amx {

using dense_amx::kChunk;

inline constexpr int64_t kMostRank = 512;  // of which `low` fits beside the sums

// 32 elements of 16 rows, the first n of them read, become their pairs; those of a single row lie as it does.
ARMLLM_INLINE void put_pairs(const lora::Row<bfloat16> (&of)[kBlock], bool is_single, int64_t k, int64_t n,
                             bfloat16* to) {
  if (is_single) {
    _mm512_store_si512(to, dense_amx::load_chunk(of[0].x + k, n));
    return;
  }
  __m512i r[kBlock];
  if (n >= kChunk) {
    ARMLLM_UNROLL for (int i = 0; i < kBlock; ++i)
      r[i] = _mm512_loadu_si512(of[i].x + k);
  } else {
    ARMLLM_UNROLL for (int i = 0; i < kBlock; ++i)
      r[i] = dense_amx::load_chunk(of[i].x + k, n);
  }
  dense_amx::transpose(r);
  ARMLLM_UNROLL for (int i = 0; i < kBlock; ++i)
    _mm512_store_si512(to + i * kChunk, r[i]);
}

// low = A x for `rows` rows of x and rows [begin, end) of A, 16 of each at most.
ARMLLM_INLINE void shrink_block(const LoraArgs& args, const LoraTile& tile, int64_t place, int64_t rows,
                                const bfloat16* a, int64_t begin, int64_t end) {
  const int64_t n = args.in_features, count = end - begin;
  lora::Row<bfloat16> of[kBlock];
  // The columns of rows that are not there are none of the tile's.
  for (int64_t i = 0; i < kBlock; ++i)
    of[i] = lora::row_at<bfloat16>(args, place + (i < rows ? i : 0), tile.part);
  dense_amx::configure(count, rows);
  _tile_zero(0);
  alignas(64) bfloat16 pairs[2][kBlock * kChunk];  // of this step, while the last one's are being multiplied
  const int64_t stride = rows > 1 ? 64 : 4;
  int64_t k = 0;
  for (; k + kChunk <= n; k += kChunk) {
    bfloat16* const x = pairs[k / kChunk % 2];
    put_pairs(of, rows == 1, k, kChunk, x);
    __asm__ volatile("" ::: "memory");
    _tile_loadd(4, x, stride);
    _tile_loadd(5, a + begin * n + k, 2 * n);
    _tile_dpbf16ps(0, 5, 4);
  }
  if (k < n) {
    alignas(64) bfloat16 rest[kBlock * kChunk];
    put_pairs(of, rows == 1, k, n - k, pairs[0]);
    dense_amx::copy_rest(rest, a + begin * n + k, n, count, n - k);
    _tile_loadd(4, pairs[0], stride);
    _tile_loadd(5, rest, 2 * kChunk);
    _tile_dpbf16ps(0, 5, 4);
  }
  alignas(64) float sums[kBlock][kBlock] = {};
  _tile_stored(0, sums, 64);
  __asm__ volatile("" ::: "memory");
  __m512i r[kBlock];
  ARMLLM_UNROLL for (int i = 0; i < kBlock; ++i)
    r[i] = _mm512_load_si512(sums[i]);
  dense_amx::transpose(r);
  ARMLLM_UNROLL for (int i = 0; i < kBlock; ++i) {
    const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)r[i]));
    if (i < rows) _mm512_mask_storeu_epi32(of[i].low + begin, first_lanes(count), _mm512_slli_epi32(low, 16));
  }
}

ARMLLM_INLINE void shrink(const LoraArgs& args, const LoraTile& tile) {
  const bfloat16* const a = static_cast<const bfloat16*>(args.a) +
                            (tile.slot * args.parts + tile.part) * args.max_rank * args.in_features;
  for (int64_t begin = tile.begin; begin < tile.end; begin += kBlock) {
    const int64_t end = begin + kBlock < tile.end ? begin + kBlock : tile.end;
    for (int64_t place = tile.row_begin; place < tile.row_end; place += kBlock) {
      const int64_t rows = tile.row_end - place < kBlock ? tile.row_end - place : kBlock;
      shrink_block(args, tile, place, rows, a, begin, end);
    }
  }
  _tile_release();
}

// What tiles hold: 0 and 1 sums of 16 columns each, 4 rows of `low`, 5 and 6 pairs of B's rows.
ARMLLM_INLINE void configure(int64_t rows, int64_t pairs) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) {
    shapes.rows[i] = static_cast<uint8_t>(i > 4 ? pairs : rows);
    shapes.column_bytes[i] = static_cast<uint16_t>(i == 4 ? 4 * pairs : 64);
  }
  load_shapes(shapes);
}

// Pairs of rows of B, of which `left` are there, as 16 columns and 16 others take them.
ARMLLM_INLINE void put_weights(const bfloat16* b, int64_t stride, int64_t left, int64_t pairs, int64_t ahead,
                               bfloat16 (&to)[2][kBlock * kChunk]) {
  for (int64_t pair = 0; pair < pairs; ++pair, b += 2 * stride, left -= 2) {
    __builtin_prefetch(b + ahead, 0, 2);
    __builtin_prefetch(b + stride + ahead, 0, 2);
    const __m512i even = left > 0 ? _mm512_loadu_si512(b) : _mm512_setzero_si512();
    const __m512i odd = left > 1 ? _mm512_loadu_si512(b + stride) : _mm512_setzero_si512();
    _mm512_store_si512(to[0] + pair * kChunk, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(to[1] + pair * kChunk, _mm512_unpackhi_epi16(even, odd));
  }
  __asm__ volatile("" ::: "memory");
}

// y += low . B for 16 rows at most and the columns of a tile, 32 at a time; the last ones are left.
ARMLLM_INLINE void expand_rows(const LoraArgs& args, const LoraTile& tile, int64_t place, int64_t rows,
                               const lora::Columns& columns) {
  const int64_t rank = columns.rank, stride = columns.width;
  const bfloat16* const b = static_cast<const bfloat16*>(args.b) + columns.first_weight;
  lora::Row<bfloat16> of[kBlock];
  alignas(64) bfloat16 low[kMostRank / kChunk][kBlock][kChunk];
  for (int64_t i = 0; i < rows; ++i) {
    of[i] = lora::row_at<bfloat16>(args, place + i, tile.part);
    for (int64_t at = 0; at < rank; at += kChunk)
      _mm512_store_si512(low[at / kChunk][i], lora::load_low(of[i].low + at, rank - at));
  }
  // Ranks behind the last meet rows of zeros.
  const int64_t pairs = rank < kChunk ? (rank + 1) / 2 : kBlock;
  const int64_t ahead = place == tile.row_begin ? 8 * kChunk : 0;
  configure(rows, pairs);
  alignas(64) bfloat16 weights[2][2][kBlock * kChunk];
  alignas(64) float sums[2][kBlock * kBlock];
  for (int64_t c = 0; c + kChunk <= columns.count; c += kChunk) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t at = 0; at < rank; at += kChunk) {
      auto& both = weights[(c + at) / kChunk % 2];
      put_weights(b + at * stride + c, stride, rank - at, pairs, ahead, both);
      _tile_loadd(4, low[at / kChunk], 64);
      _tile_loadd(5, both[0], 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(6, both[1], 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    __asm__ volatile("" ::: "memory");
    for (int64_t i = 0; i < rows; ++i) {
      bfloat16* const y = of[i].y + columns.column + c;
      __m512 first, second;
      lora::load_columns(y, first, second);
      lora::store_columns(y, _mm512_add_ps(first, _mm512_load_ps(sums[0] + i * kBlock)),
                          _mm512_add_ps(second, _mm512_load_ps(sums[1] + i * kBlock)));
    }
  }
}

ARMLLM_INLINE void expand(const LoraArgs& args, const LoraTile& tile) {
  const lora::Columns columns = lora::columns_of(args, tile);
  if (columns.rank > kMostRank) return lora::expand<bfloat16>(args, tile);
  lora::scale_rows<bfloat16>(args, tile, columns);
  for (int64_t place = tile.row_begin; place < tile.row_end; place += kBlock) {
    const int64_t rows = tile.row_end - place < kBlock ? tile.row_end - place : kBlock;
    expand_rows(args, tile, place, rows, columns);
  }
  _tile_release();
  lora::expand_last<bfloat16>(args, tile, columns, columns.count / kChunk * kChunk);
}

}  // namespace lora_amx
