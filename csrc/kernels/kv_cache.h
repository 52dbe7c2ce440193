// The KV cache of the FMA kernels: keys in panels of 16 tokens, [block_size / 16][head_dim][16], so that a
// vector holds one element of several keys and no horizontal sum is ever needed; values as they are,
// [block_size][head_dim].

#pragma once

#include "kernels/kv_slots.h"

inline constexpr int64_t kPanel = 16;
// How many keys attention takes at a time.
inline constexpr int64_t kChunk = 64;

template <class T>
ARMLLM_INLINE void kv_cache_layout(const KvCacheShape& shape, KvCacheLayout& layout) {
  const int64_t elements = shape.block_size * shape.head_dim;
  layout.value_offset_bytes = elements * static_cast<int64_t>(sizeof(T));
  layout.head_stride_bytes = 2 * layout.value_offset_bytes;
  layout.scale_offset_bytes = 0;
  layout.block_bytes = shape.num_kv_heads * layout.head_stride_bytes;
}

template <class T>
ARMLLM_INLINE void write_kv_cache(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {
  const int64_t head_dim = a.shape.head_dim;
  for_each_slot<T>(
      a, begin, end, [&](char* base, int64_t offset, const T* key, const T* value) ARMLLM_LAMBDA {
        T* keys = reinterpret_cast<T*>(base) + offset / kPanel * head_dim * kPanel + offset % kPanel;
        for (int64_t d = 0; d < head_dim; ++d) keys[d * kPanel] = key[d];
        T* values = reinterpret_cast<T*>(base + a.layout.value_offset_bytes) + offset * head_dim;
        memcpy(values, value, static_cast<size_t>(head_dim) * sizeof(T));
      });
}
