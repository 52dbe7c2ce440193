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
      const armllm::KvCacheLayout layout =
          armllm::kv_cache_layout(context.table, Type<T>::kStorage, armllm::KvCacheType::plain, shape);
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
        armllm::write_kv_cache(context.table, Type<T>::kStorage, armllm::KvCacheType::plain,
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
        const armllm::KvCacheLayout layout = armllm::kv_cache_layout(
            context.table, Type<T>::kStorage, armllm::KvCacheType::plain, {heads, head_dim, block_size});
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

constexpr auto kInt8 = armllm::KvCacheType::int8;

// Fills a head vector: normal numbers, halves that are ties when rounded, and now and then what has no scale.
template <class T>
void fill_vector(T* x, int64_t n, Random& random) {
  const int64_t kind = random.integer(0, 9);
  for (int64_t i = 0; i < n; ++i) {
    float number = random.normal() * 3;
    if (kind < 5) number = static_cast<float>(random.integer(-126, 126)) / 2;
    if (kind == 8) number = 0;
    from_float(number, x[i]);
  }
  if (kind < 5) from_float(kind < 2 ? -127.0f : 127.0f, x[random.integer(0, n - 1)]);
  if (kind == 9) from_float(random.integer(0, 1) == 0 ? NAN : -INFINITY, x[random.integer(0, n - 1)]);
}

std::vector<int8_t> sorted(std::vector<int8_t> x) {
  std::sort(x.begin(), x.end());
  return x;
}

// A slot gets the integers and scales that quantize_vector says; they fill the block, each in a place of its
// own.
template <class T>
Result test_write_kv_cache_int8(const Context& context) {
  Result result;
  Random random(context.seed);
  for (const int64_t head_dim : {8, 24, 64, 80, 128, 1024}) {
    for (const int64_t block_size : {16, 32, 64, 128}) {
      const int64_t heads = random.integer(1, 3), row = heads * head_dim;
      const armllm::KvCacheShape shape{heads, head_dim, block_size};
      const armllm::KvCacheLayout layout =
          armllm::kv_cache_layout(context.table, Type<T>::kStorage, kInt8, shape);
      constexpr int8_t kNothing = -128;  // never written: integers lie in [-127, 127]
      Array<int8_t> cache(2 * layout.block_bytes);
      memset(cache.data(), 0x80, static_cast<size_t>(cache.size()));
      Array<T> key(row), value(row);
      Array<int64_t> slot(1);
      std::vector<int8_t> before(static_cast<size_t>(cache.size()));
      for (int64_t offset = 0; offset < block_size; ++offset) {
        for (int64_t h = 0; h < heads; ++h) {
          fill_vector(&key[h * head_dim], head_dim, random);
          fill_vector(&value[h * head_dim], head_dim, random);
        }
        slot[0] = block_size + offset;
        memcpy(before.data(), cache.data(), before.size());
        armllm::write_kv_cache(context.table, Type<T>::kStorage, kInt8,
                               {key.data(), value.data(), cache.data(), slot.data(), shape, layout, 1, row,
                                head_dim, row, head_dim},
                               2);
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t head = layout.block_bytes + h * layout.head_stride_bytes;
          const int64_t parts[] = {0, layout.value_offset_bytes, layout.scale_offset_bytes};
          for (int which = 0; which < 2; ++which) {
            const QuantizedVector expected =
                quantize_vector(which == 0 ? &key[h * head_dim] : &value[h * head_dim], head_dim);
            std::vector<int8_t> written;
            for (int64_t i = head + parts[which]; i < head + parts[which + 1]; ++i) {
              const int8_t old = before[static_cast<size_t>(i)];
              if (cache[i] == old) continue;
              if (old != kNothing) result.fail("a slot overwrites another");
              written.push_back(cache[i]);
            }
            if (sorted(written) != sorted(expected.q)) result.fail("a slot doesn't hold its integers");
            float scale;
            memcpy(&scale,
                   &cache[head + layout.scale_offset_bytes +
                          (which * block_size + offset) * static_cast<int64_t>(sizeof scale)],
                   sizeof scale);
            if (scale != expected.scale && !(isnan(scale) && isnan(expected.scale))) {
              result.fail("a slot doesn't hold its scale");
            }
          }
        }
      }
      for (int64_t i = 0; i < cache.size(); ++i) {
        if (i < layout.block_bytes && cache[i] != kNothing) result.fail("wrote into another block");
      }
      ++result.cases;
    }
  }
  return result;
}

template <class T>
Result test_kv_cache_layout_int8(const Context& context) {
  Result result;
  for (const int64_t heads : {1, 3, 8}) {
    for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const int64_t block_size : {16, 32, 64, 128}) {
        const armllm::KvCacheShape shape{heads, head_dim, block_size};
        const armllm::KvCacheLayout layout =
            armllm::kv_cache_layout(context.table, Type<T>::kStorage, kInt8, shape);
        const int64_t part = head_dim * block_size,
                      scales = 2 * block_size * static_cast<int64_t>(sizeof(float));
        if (layout.block_bytes % 64 != 0) result.fail("block_bytes is not a multiple of 64");
        if (layout.scale_offset_bytes % 4 != 0) result.fail("scales are not aligned");
        if (layout.value_offset_bytes < part ||
            layout.scale_offset_bytes < layout.value_offset_bytes + part ||
            layout.head_stride_bytes < layout.scale_offset_bytes + scales ||
            layout.block_bytes < heads * layout.head_stride_bytes) {
          result.fail("the parts of a block overlap");
        }
        for (const Storage storage : {Storage::f32, Storage::f16, Storage::bf16}) {
          const armllm::KvCacheLayout other = armllm::kv_cache_layout(context.table, storage, kInt8, shape);
          if (memcmp(&layout, &other, sizeof layout) != 0) result.fail("storage types differ in the layout");
        }
        ++result.cases;
      }
    }
  }
  return result;
}

}  // namespace

const std::vector<NamedTest>& kv_cache_tests() {
  static const std::vector<NamedTest> tests = {
      CONFORMANCE_STORAGES(kv_cache_layout, test_kv_cache_layout),
      CONFORMANCE_STORAGES(write_kv_cache, test_write_kv_cache),
      CONFORMANCE_STORAGES(kv_cache_layout_int8, test_kv_cache_layout_int8),
      CONFORMANCE_STORAGES(write_kv_cache_int8, test_write_kv_cache_int8)};
  return tests;
}

}  // namespace conformance
