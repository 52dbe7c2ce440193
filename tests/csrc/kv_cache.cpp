// Writing to the KV cache, and its layout.

#include <algorithm>

#include "support.h"

namespace conformance {

namespace {

// Every slot has bytes of its own, and together they fill the block.
template <class T>
Result test_write_kv_cache(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t head_dim : {8, 24, 64, 80, 128, 256}) {
    for (const int64_t block_size : {16, 32, 64, 128}) {
      const int64_t heads = random.integer(1, 3), row = heads * head_dim;
      const armllm::KvCacheShape shape{heads, head_dim, block_size};
      const armllm::KvCacheLayout layout = armllm::kv_cache_layout(context.table, Type<T>::kStorage, shape);
      Array<char> cache(2 * layout.block_bytes);
      memset(cache.data(), 0, static_cast<size_t>(cache.size()));
      Array<T> key(row), value(row);
      Array<int64_t> slot(1);
      std::vector<char> before(static_cast<size_t>(cache.size()));
      std::vector<uint16_t> all;
      for (int64_t offset = 0; offset < block_size; ++offset) {
        for (int64_t i = 0; i < row; ++i) {
          from_float(1.0f + static_cast<float>(random.integer(0, 100)), key[i]);
          from_float(-1.0f - static_cast<float>(random.integer(0, 100)), value[i]);
        }
        slot[0] = block_size + offset;
        memcpy(before.data(), cache.data(), before.size());
        armllm::write_kv_cache(context.table, Type<T>::kStorage,
                               {key.data(), value.data(), cache.data(), slot.data(), shape, layout, 1, row,
                                head_dim, row, head_dim},
                               2);
        std::vector<float> written, expected;
        for (int64_t i = 0; i < cache.size() / static_cast<int64_t>(sizeof(T)); ++i) {
          T now, old;
          memcpy(&now, cache.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
          memcpy(&old, before.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
          if (memcmp(&now, &old, sizeof(T)) == 0) continue;
          if (to_float(old) != 0) result.fail("a slot overwrites another");
          written.push_back(to_float(now));
        }
        for (int64_t i = 0; i < row; ++i) {
          expected.push_back(to_float(key[i]));
          expected.push_back(to_float(value[i]));
        }
        std::sort(written.begin(), written.end());
        std::sort(expected.begin(), expected.end());
        if (written != expected) result.fail("a slot doesn't hold its key and value");
      }
      for (int64_t i = 0; i < cache.size(); ++i) {
        if (i < layout.block_bytes && cache[i] != 0) result.fail("wrote into another block");
      }
      ++result.cases;
    }
  }
  return result;
}

template <class T>
Result test_kv_cache_layout(const Context& context) {
  Result result;
  for (const int64_t heads : {1, 3, 8}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const int64_t block_size : {16, 32, 64, 128}) {
        const armllm::KvCacheLayout layout =
            armllm::kv_cache_layout(context.table, Type<T>::kStorage, {heads, head_dim, block_size});
        const int64_t part = head_dim * block_size * static_cast<int64_t>(sizeof(T));
        if (layout.block_bytes % 64 != 0) result.fail("block_bytes is not a multiple of 64");
        if (layout.value_offset_bytes < part || layout.head_stride_bytes < layout.value_offset_bytes + part ||
            layout.block_bytes < heads * layout.head_stride_bytes) {
          result.fail("the parts of a block overlap");
        }
        ++result.cases;
      }
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& kv_cache_tests() {
  static const std::vector<NamedTest> tests = {CONFORMANCE_STORAGES(kv_cache_layout, test_kv_cache_layout),
                                               CONFORMANCE_STORAGES(write_kv_cache, test_write_kv_cache)};
  return tests;
}

}  // namespace conformance
