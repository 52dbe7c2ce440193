// attention.h on a binary16 cache with FMLAL (simd/fmlal.h). So nothing is widened: the query stays as it is
// stored and the scale waits for the logits; weights are rounded to binary16, times 2^14, so that only those
// below 2^-28 of the largest lose digits. The cache lies as in kv_cache.h.

#pragma once

#include "simd/fmlal.h"
#include "kernels/attention.h"

namespace fmlal {

inline constexpr float kWeightScale = 0x1p14f;

struct Scratch {
  AttentionScratch base;
  float16* query;    // [kTileRows, head_dim]
  float16* weights;  // [kTileRows, kChunk]
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  constexpr int64_t kBehind = 32;  // weights are loaded in fours, also behind the last
  return attention_scratch_bytes(shape) +
         (kTileRows * kChunk + kBehind) * static_cast<int64_t>(sizeof(float16));
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  const AttentionScratch base = attention_scratch(shape, memory);
  char* end = static_cast<char*>(memory) + attention_scratch_bytes(shape);
  return {base, reinterpret_cast<float16*>(base.query), reinterpret_cast<float16*>(end)};
}

// Times 2^14, as floats and rounded.
ARMLLM_INLINE void scale_weights(float* weights, int64_t n, float16* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf w = mul(load(weights + i), splat(kWeightScale));
    store(weights + i, w);
    store(out + i, w);
  }
}

ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  const Scratch s = scratch(a.shape, memory);
  for (int64_t r = 0; r < rows; ++r) {
    const float16* q = static_cast<const float16*>(a.query) +
                       row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
    memcpy(s.query + r * head_dim, q, static_cast<size_t>(head_dim) * sizeof(float16));
  }
  memset(state.values, 0, static_cast<size_t>(rows * head_dim) * sizeof(float));
  const float16* values[kChunk / kPanel];

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    for (int64_t j = 0; j < n; j += kPanel) {
      const char* block = block_of(a, tile, begin + j);
      const int64_t offset = (begin + j) % block_size * head_dim;
      values[j / kPanel] = reinterpret_cast<const float16*>(block + a.layout.value_offset_bytes) + offset;
      rows_logits<kRowTile>(s.query, rows, reinterpret_cast<const float16*>(block) + offset, head_dim,
                            logit_scale(a), s.base.logits + j);
    }
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    const int64_t padded = (n + kPanel - 1) / kPanel * kPanel;
    for (int64_t r = 0; r < rows; ++r) {
      scale_weights(s.base.logits + r * kChunk, padded, s.weights + r * kChunk);
    }
    tile_values(a, tile, s.base, s.weights, values, begin, n, state.values);
  };
  online_softmax<kChunk, kPanel>(a, tile, split, state, s.base.logits, s.base.factor, fill, add);
  for (int64_t i = 0; i < rows * head_dim; i += kLanes) {
    store(state.values + i, mul(load(state.values + i), splat(1 / kWeightScale)));
  }
}

}  // namespace fmlal
