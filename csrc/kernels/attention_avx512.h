// Attention on a bfloat16 cache by the tiles of AMX or, where a target lacks them, by VDPBF16PS. Keys lie in
// the cache in panels, [block_size / 16][head_dim / 2][16][2], and values as pairs of tokens, [block_size /
// 2][value_dim][2]: both are loaded as they lie. The softmax is in float, its result is rounded to bfloat16
// before it multiplies.

#pragma once

#if defined(__AMX_BF16__)
#include "kernels/amx_products.h"
#else
#include "kernels/avx512_products.h"
#endif
#include "kernels/kv_slots.h"
#include "kernels/softmax.h"

namespace tiles {

// All keys of a split at once. Rows of logits are a little longer, so that they fall into different sets of
// the cache.
inline constexpr int64_t kChunk = 544, kTileRows = 2 * kBlock;
static_assert(kChunk >= kAttentionSplit, "no sum is ever rescaled");

ARMLLM_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Value vectors are padded with zeros to whole columns of tiles.
ARMLLM_INLINE int64_t value_dim(const KvCacheShape& shape) { return round_up(shape.head_dim, kBlock); }

ARMLLM_INLINE void kv_cache_layout(const KvCacheShape& shape, KvCacheLayout& layout) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(bfloat16));
  layout.value_offset_bytes = shape.block_size * shape.head_dim * kBytes;
  layout.head_stride_bytes = layout.value_offset_bytes + shape.block_size * value_dim(shape) * kBytes;
  layout.scale_offset_bytes = 0;
  layout.block_bytes = shape.num_kv_heads * layout.head_stride_bytes;
}

ARMLLM_INLINE void write_kv_cache(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {
  const int64_t head_dim = a.shape.head_dim, columns = value_dim(a.shape);
  const auto write = [&](char* base, int64_t offset, const bfloat16* key,
                         const bfloat16* value) ARMLLM_LAMBDA {
    bfloat16* keys =
        reinterpret_cast<bfloat16*>(base) + offset / kBlock * kBlock * head_dim + offset % kBlock * 2;
    for (int64_t d = 0; d < head_dim; d += 2) memcpy(keys + d * kBlock, key + d, 2 * sizeof(bfloat16));
    bfloat16* values =
        reinterpret_cast<bfloat16*>(base + a.layout.value_offset_bytes) + offset / 2 * 2 * columns;
    for (int64_t d = 0; d < head_dim; d += kBlock) {
      const __m256i x = _mm256_maskz_loadu_epi16(first_lanes(head_dim - d), value + d);
      const __m512i wide = _mm512_cvtepu16_epi32(x);
      if (offset % 2 == 0) {
        _mm512_mask_storeu_epi16(values + 2 * d, 0x55555555, wide);
      } else {
        _mm512_mask_storeu_epi16(values + 2 * d, 0xaaaaaaaa, _mm512_slli_epi32(wide, 16));
      }
    }
  };
  for_each_slot<bfloat16>(a, begin, end, write);
}

struct Scratch {
  float* logits;          // [kTileRows, kChunk]
  float* values;          // [kTileRows, value_dim]
  float* factor;          // [kTileRows]
  bfloat16* query;        // [kTileRows, query_dim]
  bfloat16* weights;      // [kTileRows, kChunk]
  bfloat16* last_values;  // [kDepth / 2, value_dim, 2]: the last group of tokens, zero behind the last token
  int64_t query_dim, value_dim;
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  const int64_t columns = value_dim(shape), query_dim = round_up(shape.head_dim, kDepth);
  return 4 * kTileRows * (kChunk + columns + 1) + 2 * (kTileRows * (query_dim + kChunk) + kDepth * columns);
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  Scratch s;
  s.value_dim = value_dim(shape);
  s.query_dim = round_up(shape.head_dim, kDepth);
  s.logits = static_cast<float*>(memory);
  s.values = s.logits + kTileRows * kChunk;
  s.factor = s.values + kTileRows * s.value_dim;
  s.query = reinterpret_cast<bfloat16*>(s.factor + kTileRows);
  s.weights = s.query + kTileRows * s.query_dim;
  s.last_values = s.weights + kTileRows * kChunk;
  return s;
}

// logits of all rows and the keys of n panels, from `steps` times `depth` elements of the head from d on.
ARMLLM_INLINE void tile_logits(const Scratch& s, int64_t rows, const bfloat16* const* panels, int64_t n,
                               int64_t d, int64_t steps, int64_t depth) {
  const Products products(rows, depth);
  products.by_blocks(n, [&](auto r, auto c, int64_t first) ARMLLM_LAMBDA {
    const auto query = [&](int64_t i, int64_t block)
                           ARMLLM_LAMBDA { return s.query + block * kBlock * s.query_dim + d + i * depth; };
    const auto keys = [&](int64_t i, int64_t block)
                          ARMLLM_LAMBDA { return panels[first + block] + (d + i * depth) * kBlock; };
    products.sum<decltype(r)::value, decltype(c)::value>(s.logits + first * kBlock, kChunk, d > 0, steps,
                                                         query, 2 * s.query_dim, keys, 4 * kBlock);
  });
}

// The first n tokens of a group, and zeros for the others.
ARMLLM_INLINE void copy_tokens(const Scratch& s, const bfloat16* from, int64_t n, int64_t group) {
  for (int64_t t = 0; t < group; t += 2) {
    const __mmask32 there = t + 1 < n ? 0xffffffff : t < n ? 0x55555555 : 0;
    for (int64_t i = t * s.value_dim; i < (t + 2) * s.value_dim; i += 32) {
      _mm512_storeu_si512(s.last_values + i, _mm512_maskz_loadu_epi16(there, from + i));
    }
  }
}

ARMLLM_INLINE bool all_finite(const bfloat16* const* groups, int64_t begin, int64_t end, int64_t elements) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (int64_t g = begin; g < end; ++g) {
    for (int64_t i = 0; i < elements; i += 32) {
      const __m512i x = _mm512_and_si512(_mm512_loadu_si512(groups[g] + i), exponent);
      found |= _mm512_cmpeq_epi16_mask(x, exponent);
    }
  }
  return found == 0;
}

// The values of one row that must not touch what it doesn't see.
ARMLLM_INLINE void seen_values(const Scratch& s, int64_t row, const bfloat16* const* groups, int64_t group,
                               KeyRange seen) {
  for (int64_t d = 0; d < s.value_dim; d += kLanes) {
    Vf acc = zero();
    for (int64_t t = seen.first; t < seen.last; ++t) {
      const bfloat16* pair = groups[t / group] + t % group / 2 * 2 * s.value_dim;
      Vf even, odd;
      load_pairs(pair + 2 * d, even, odd);
      acc = fma(t % 2 == 0 ? even : odd, splat(s.logits[row * kChunk + t]), acc);
    }
    store(s.values + row * s.value_dim + d, acc);
  }
}

// values = weights . values for all rows. A key that some rows don't see has the weight 0 there, which would
// make a NaN of an infinite value: then row by row.
ARMLLM_INLINE void tile_values(const PagedAttentionArgs& a, const AttentionTile& tile, const Scratch& s,
                               const bfloat16* const* groups, int64_t group, int64_t begin, int64_t n) {
  const int64_t rows = tile.row_end - tile.row_begin, num_groups = (n + group - 1) / group;
  const KeyRange common = seen_by_all(a, tile, begin, n);
  const int64_t first = (common.first + group - 1) / group,
                last = common.last == n ? num_groups : common.last / group;
  const int64_t elements = group * s.value_dim;
  if (!all_finite(groups, 0, first, elements) || !all_finite(groups, last, num_groups, elements)) {
    for (int64_t r = 0; r < rows; ++r) {
      seen_values(s, r, groups, group, seen_by(a, tile, tile.row_begin + r, begin, n));
    }
    return;
  }
  const Products products(rows, group);
  products.by_blocks(s.value_dim / kBlock, [&](auto r, auto c, int64_t first) ARMLLM_LAMBDA {
    const auto weights = [&](int64_t i, int64_t block)
                             ARMLLM_LAMBDA { return s.weights + block * kBlock * kChunk + i * group; };
    const auto values = [&](int64_t i, int64_t block)
                            ARMLLM_LAMBDA { return groups[i] + 2 * (first + block) * kBlock; };
    products.sum<decltype(r)::value, decltype(c)::value>(s.values + first * kBlock, s.value_dim, false,
                                                         num_groups, weights, 2 * kChunk, values,
                                                         4 * s.value_dim);
  });
}

// The rows of a tile side by side, as tile loads want them.
ARMLLM_INLINE void copy_queries(const PagedAttentionArgs& a, const AttentionTile& tile, const Scratch& s) {
  for (int64_t r = 0; r < tile.row_end - tile.row_begin; ++r) {
    const bfloat16* query =
        static_cast<const bfloat16*>(a.query) +
        row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
    memcpy(s.query + r * s.query_dim, query, static_cast<size_t>(a.shape.head_dim) * sizeof(bfloat16));
  }
}

ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  const Scratch s = scratch(a.shape, memory);
  copy_queries(a, tile, s);
  const bfloat16* groups[kChunk / kBlock];
  int64_t group = 0;

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    // A group of tokens lies in one block.
    group = block_size % kDepth == 0 && begin % kDepth == 0 ? kDepth : kBlock;
    const bfloat16* panels[kChunk / kBlock];
    for (int64_t j = 0; j < n; j += kBlock) {
      const char* block = block_of(a, tile, begin + j);
      const int64_t offset = (begin + j) % block_size;
      panels[j / kBlock] = reinterpret_cast<const bfloat16*>(block) + offset * head_dim;
      if (rows < kBlock) {  // they wait for memory
        const char* values = block + a.layout.value_offset_bytes + 2 * offset * s.value_dim;
        for (int64_t i = 0; i < 2 * kBlock * s.value_dim; i += 64) __builtin_prefetch(values + i, 0, 2);
      }
      if (j % group == 0) {
        groups[j / group] =
            reinterpret_cast<const bfloat16*>(block + a.layout.value_offset_bytes) + offset * s.value_dim;
      }
    }
    // What lies behind the last token is anything, a NaN too: 0 * NaN is not 0, so it is replaced.
    if (n % group != 0) {
      const int64_t last = n / group;
      copy_tokens(s, groups[last], n % group, group);
      groups[last] = s.last_values;
    }
    const int64_t num_panels = (n + kBlock - 1) / kBlock, rest = head_dim % kDepth;
    if (head_dim >= kDepth) tile_logits(s, rows, panels, num_panels, 0, head_dim / kDepth, kDepth);
    if (rest > 0) tile_logits(s, rows, panels, num_panels, head_dim - rest, 1, rest);
    const Vf scale = splat(logit_scale(a));
    for (int64_t r = 0; r < rows; ++r) {
      float* logits = s.logits + r * kChunk;
      for (int64_t i = 0; i < n; i += kLanes) store(logits + i, mul(load(logits + i), scale));
    }
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = s.logits + r * kChunk;
      bfloat16* to = s.weights + r * kChunk;
      for (int64_t i = 0; i < n; i += 2 * kLanes) {
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(from + i + kLanes), (__m512)load(from + i));
        _mm512_storeu_si512(to + i, (__m512i)both);
      }
    }
    tile_values(a, tile, s, groups, group, begin, n);
  };
  online_softmax<kChunk, kDepth>(a, tile, split, state, s.logits, s.factor, fill, add);

  for (int64_t r = 0; r < rows; ++r) {
    memcpy(state.values + r * head_dim, s.values + r * s.value_dim,
           static_cast<size_t>(head_dim) * sizeof(float));
  }
}

}  // namespace tiles
