// The paged KV cache and attention over it.

#include <utility>

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

// The target whose layout a KV cache has in this process.
const std::string& target_of(Storage storage, KvCacheType cache) {
  constexpr Op kOps[2][3] = {
      {Op::kv_cache_layout_f32, Op::kv_cache_layout_f16, Op::kv_cache_layout_bf16},
      {Op::kv_cache_layout_int8_f32, Op::kv_cache_layout_int8_f16, Op::kv_cache_layout_int8_bf16}};
  const Op op = kOps[static_cast<int>(cache)][static_cast<int>(storage)];
  return dispatched().target[static_cast<size_t>(op)];
}

KvCacheType type_of(std::string_view dtype, std::string_view cache_dtype) {
  if (cache_dtype == dtype) return KvCacheType::plain;
  if (cache_dtype == kInt8.name) return KvCacheType::int8;
  throw std::invalid_argument("cache_dtype is " + std::string(cache_dtype) + "; keys and values of " +
                              std::string(dtype) + " are kept so or as int8");
}

// dtype and cache_dtype are names; block_bytes, head_stride_bytes, value_offset_bytes and the target come
// back.
PyObject* py_kv_cache_layout(PyObject* const* a) {
  const std::string_view dtype = text("dtype", a[0]);
  const Storage storage = storage_of("dtype", dtype);
  const KvCacheType cache = type_of(dtype, text("cache_dtype", a[1]));
  const KvCacheShape shape{integer("num_kv_heads", a[2]), integer("head_dim", a[3]),
                           integer("block_size", a[4])};
  const KvCacheLayout layout = kv_cache_layout(dispatched().table, storage, cache, shape);
  return Py_BuildValue("LLLs", static_cast<long long>(layout.block_bytes),
                       static_cast<long long>(layout.head_stride_bytes),
                       static_cast<long long>(layout.value_offset_bytes), target_of(storage, cache).c_str());
}

// A KV cache with the layout of this process, as a KVCacheLayout describes it.
struct Cache {
  StorageType storage;
  KvCacheType type;
  Size heads, head_dim;
  KvCacheShape shape;
  KvCacheLayout layout;
  Size blocks{"num_blocks"};

  explicit Cache(const Description& fields)
      : storage(storage_of("layout", fields.text(0))),
        type(type_of(fields.text(0), fields.text(1))),
        heads(fields.number(2)),
        head_dim(fields.number(3)),
        shape{heads, head_dim, fields.number(4)},
        layout(kv_cache_layout(dispatched().table, storage, type, shape)) {
    const std::string_view target = fields.text(8);
    const std::string& here = target_of(storage, type);
    if (fields.number(5) != layout.block_bytes || fields.number(6) != layout.head_stride_bytes ||
        fields.number(7) != layout.value_offset_bytes || target != here) {
      throw std::invalid_argument("layout was made for target " + std::string(target) +
                                  "; this process uses " + here);
    }
  }
  void* match(PyObject* object) {
    Size bytes(layout.block_bytes);
    return TensorMatcher({blocks, bytes})
        .of(kUint8)
        .contiguous()
        .aligned("; use allocate_kv_cache")
        .match("cache", object)
        .data;
  }
};

// Every layer of a model has the same layout: the last one is kept, with its tuple, so that no other tuple
// can be taken for it.
Cache cache_of(PyObject* layout) {
  static PyObject* last = nullptr;
  static const Cache* cache = nullptr;
  if (layout != last) {
    const Cache* next = new Cache(Description("layout", layout, 9));
    delete std::exchange(cache, next);
    Py_INCREF(layout);
    Py_XDECREF(std::exchange(last, layout));
  }
  return *cache;
}

void py_write_kv_cache(PyObject* const* a) {
  Cache cache = cache_of(a[3]);
  Size tokens("tokens");
  const Tensor key =
      TensorMatcher({tokens, cache.heads, cache.head_dim}).of(cache.storage).match("key", a[0]);
  const Tensor value =
      TensorMatcher({tokens, cache.heads, cache.head_dim}).of(cache.storage).match("value", a[1]);
  const Tensor slots = TensorMatcher({tokens}).of(kInt64).match("slot_mapping", a[4]);
  void* const blocks = cache.match(a[2]);
  const WriteKvCacheArgs args{key.data,      value.data,      blocks,         slots.of<int64_t>(),
                              cache.shape,   cache.layout,    tokens,         key.stride[0],
                              key.stride[1], value.stride[0], value.stride[1]};
  run_op([=] { write_kv_cache(dispatched().table, cache.storage, cache.type, args, cache.blocks); });
}

// 0 for None. A window and a chunk at once have no meaning that any model gave them.
int64_t chunk_or_none(PyObject* chunk, PyObject* window) {
  if (chunk == Py_None) return 0;
  const int64_t size = count_or_none("chunk_size", chunk);
  if (window != Py_None) throw std::invalid_argument("chunk_size and sliding_window exclude each other");
  return size;
}

void py_paged_attention(PyObject* const* a) {
  Cache cache = cache_of(a[3]);
  Size tokens("tokens"), heads("query heads"), sequences("sequences"), max_blocks("max_blocks");
  const Tensor query = TensorMatcher({tokens, heads, cache.head_dim}).of(cache.storage).match("query", a[1]);
  if (heads == 0 || heads % cache.heads != 0) {
    throw std::invalid_argument("query has " + heads.text() + " heads, expected a multiple of the " +
                                cache.heads.text() + " KV heads");
  }
  const Tensor out =
      TensorMatcher({tokens, heads, cache.head_dim}).of(cache.storage).written().match("out", a[0]);
  const Tensor tables = TensorMatcher({sequences, max_blocks}).of(kInt32).match("block_tables", a[4]);
  Size starts_size(sequences + 1);
  const Tensor starts = TensorMatcher({starts_size}).of(kInt32).match("query_start_loc", a[5]);
  const Tensor lengths = TensorMatcher({sequences}).of(kInt32).match("seq_lens", a[6]);
  const float scale = number("scale", a[7]);
  const int64_t window = count_or_none("sliding_window", a[8]);
  const int64_t chunk = chunk_or_none(a[9], a[8]);
  const bool bidirectional = boolean("bidirectional", a[10]);
  if (bidirectional && chunk != 0)
    throw std::invalid_argument("chunk_size and bidirectional exclude each other");
  const float cap = divisor_or_none("logit_soft_cap", a[11]);
  const Tensor slopes = TensorMatcher({heads}).of(kFloat32).match_or_none("alibi_slopes", a[12]);
  const Tensor sinks = TensorMatcher({heads}).of(kFloat32).match_or_none("sinks", a[13]);
  const PagedAttentionArgs args{out.data,
                                query.data,
                                cache.match(a[2]),
                                tables.of<int32_t>(),
                                starts.of<int32_t>(),
                                lengths.of<int32_t>(),
                                cache.shape,
                                cache.layout,
                                sequences,
                                heads,
                                max_blocks,
                                tables.stride[0],
                                out.stride[0],
                                out.stride[1],
                                query.stride[0],
                                query.stride[1],
                                scale,
                                window,
                                chunk,
                                bidirectional,
                                cap,
                                slopes.of<float>(),
                                sinks.of<float>()};
  run_op([=] { paged_attention(dispatched().table, cache.storage, cache.type, args, cache.blocks, tokens); });
}

void py_varlen_attention(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), heads("query heads"), kv_heads("KV heads"), head_dim("head_dim"),
      starts_size("sequences + 1");
  const Tensor query = TensorMatcher({tokens, heads, head_dim}).of(type).match("query", a[1]);
  const Tensor key = TensorMatcher({tokens, kv_heads, head_dim}).of(type).match("key", a[2]);
  const Tensor value = TensorMatcher({tokens, kv_heads, head_dim}).of(type).match("value", a[3]);
  if (kv_heads == 0 || heads == 0 || heads % kv_heads != 0) {
    throw std::invalid_argument("query has " + heads.text() + " heads, expected a multiple of the " +
                                kv_heads.text() + " KV heads");
  }
  const Tensor out = TensorMatcher({tokens, heads, head_dim}).of(type).written().match("out", a[0]);
  const Tensor starts = TensorMatcher({starts_size}).of(kInt32).match("query_start_loc", a[4]);
  if (starts_size == 0)
    throw std::invalid_argument("query_start_loc is empty, expected sequences + 1 numbers");
  const float scale = number("scale", a[5]);
  const int64_t window = count_or_none("sliding_window", a[6]);
  const bool bidirectional = boolean("bidirectional", a[7]);
  const float cap = divisor_or_none("logit_soft_cap", a[8]);
  const VarlenAttentionArgs args{out.data,
                                 query.data,
                                 key.data,
                                 value.data,
                                 starts.of<int32_t>(),
                                 starts_size - 1,
                                 heads,
                                 kv_heads,
                                 head_dim,
                                 out.stride[0],
                                 out.stride[1],
                                 query.stride[0],
                                 query.stride[1],
                                 key.stride[0],
                                 key.stride[1],
                                 value.stride[0],
                                 value.stride[1],
                                 scale,
                                 window,
                                 bidirectional,
                                 cap};
  const Storage storage = type;
  kv_cache_layout(dispatched().table, storage, KvCacheType::plain, {kv_heads, head_dim, 16});  // checks them
  run_op([=] { varlen_attention(dispatched().table, storage, args, tokens); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("kv_cache_layout", "dtype, cache_dtype, num_kv_heads, head_dim, block_size",
                  py_kv_cache_layout),
    ARMLLM_METHOD("write_kv_cache", "key, value, cache, layout, slot_mapping", py_write_kv_cache),
    ARMLLM_METHOD(
        "paged_attention",
        "out, query, cache, layout, block_tables, query_start_loc, seq_lens, scale, sliding_window, "
        "chunk_size, bidirectional, logit_soft_cap, alibi_slopes, sinks",
        py_paged_attention),
    ARMLLM_METHOD("varlen_attention",
                  "out, query, key, value, query_start_loc, scale, sliding_window, bidirectional, "
                  "logit_soft_cap",
                  py_varlen_attention),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* attention_methods() { return methods; }

}  // namespace armllm
