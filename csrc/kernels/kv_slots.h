// What every write_kv_cache does for a token and a head, a unit of [begin, end): write(memory of the head in
// the slot's block, place of the slot in the block, key, value). A token whose slot is negative is not
// written. Heads come one after another for some tokens together: the keys of these share lines of the cache.

#pragma once

#include "simd/primitives.h"

template <class T, class Write>
ARMLLM_INLINE void for_each_slot(const WriteKvCacheArgs& a, int64_t begin, int64_t end, const Write& write) {
  constexpr int64_t kTogether = 16;
  const int64_t heads = a.shape.num_kv_heads, tokens = (end + heads - 1) / heads;
  for (int64_t first = begin / heads; first < tokens; first += kTogether) {
    const int64_t last = tokens - first < kTogether ? tokens : first + kTogether;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t token = first; token < last; ++token) {
        const int64_t unit = token * heads + head, slot = a.slot_mapping[token];
        if (unit < begin || unit >= end || slot < 0) continue;
        char* base = static_cast<char*>(a.cache) + slot / a.shape.block_size * a.layout.block_bytes +
                     head * a.layout.head_stride_bytes;
        const T* key = static_cast<const T*>(a.key) + token * a.key_token_stride + head * a.key_head_stride;
        const T* value =
            static_cast<const T*>(a.value) + token * a.value_token_stride + head * a.value_head_stride;
        write(base, slot % a.shape.block_size, key, value);
      }
    }
  }
}
