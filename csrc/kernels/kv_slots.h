// What every write_kv_cache does for a token and a head, a unit of [begin, end): write(memory of the head in
// the slot's block, place of the slot in the block, key, value). A token whose slot is negative is not
// written.

#pragma once

#include "simd/primitives.h"

template <class T, class Write>
ARMLLM_INLINE void for_each_slot(const WriteKvCacheArgs& a, int64_t begin, int64_t end, const Write& write) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t token = unit / a.shape.num_kv_heads, head = unit % a.shape.num_kv_heads;
    const int64_t slot = a.slot_mapping[token];
    if (slot < 0) continue;
    char* base = static_cast<char*>(a.cache) + slot / a.shape.block_size * a.layout.block_bytes +
                 head * a.layout.head_stride_bytes;
    const T* key = static_cast<const T*>(a.key) + token * a.key_token_stride + head * a.key_head_stride;
    const T* value =
        static_cast<const T*>(a.value) + token * a.value_token_stride + head * a.value_head_stride;
    write(base, slot % a.shape.block_size, key, value);
  }
}
