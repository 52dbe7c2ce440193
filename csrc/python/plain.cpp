// Calls whose tensors are plain: on the CPU, of the types that the op takes, contiguous or, where they have
// heads, these apart from one another. The faces in Python check their arguments one by one, which takes
// longer than the kernel of a single token; so they ask here first. A call returns True when it is done,
// False when some argument is another than it expects: nothing has happened then, and the face says what is
// wrong, or passes strides on.

#include "plain.h"

#include <cmath>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "views.h"

namespace armllm {

namespace {

PyObject* not_plain() {
  PyErr_Clear();
  Py_RETURN_FALSE;
}

template <class Call>
PyObject* run(const Call& call) {
  std::string problem;
  PyObject* kind = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  try {
    call();
  } catch (const std::invalid_argument& error) {
    kind = PyExc_ValueError;
    problem = error.what();
  } catch (const std::exception& error) {
    kind = PyExc_RuntimeError;
    problem = std::string("the kernel failed: ") + error.what();
  }
  Py_END_ALLOW_THREADS;
  if (kind == nullptr) Py_RETURN_TRUE;
  PyErr_SetString(kind, problem.c_str());
  return nullptr;
}

bool number(PyObject* object, float& value) {
  value = static_cast<float>(PyFloat_AsDouble(object));
  return PyErr_Occurred() == nullptr;
}

// Whole numbers, then a text, in a tuple that holds no more.
template <size_t count>
bool described(PyObject* object, int64_t (&values)[count], PyObject*& text) {
  if (!PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) != Py_ssize_t{count} + 1) return false;
  for (size_t i = 0; i < count; ++i) values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(object, i));
  text = PyTuple_GET_ITEM(object, count);
  return PyErr_Occurred() == nullptr && PyUnicode_Check(text);
}

bool is(PyObject* text, const std::string& wanted) {
  return PyUnicode_CompareWithASCIIString(text, wanted.c_str()) == 0;
}

// (out, x, weight, eps, weight_offset)
PyObject* plain_rms_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight;
  float eps = 0, offset = 0;
  if (n != 5 || !plain(given[0], out) || !plain(given[1], x) || !plain(given[2], weight) ||
      !number(given[3], eps) || !number(given[4], offset) || !same_matrix(out, x) || !is_row_of(weight, x)) {
    return not_plain();
  }
  return run([&] {
    rms_norm(chosen().table, x.storage,
             {out.data, x.data, weight.data, x.rows, x.columns, x.columns, x.columns, eps, offset});
  });
}

// (x, residual, weight, eps, weight_offset)
PyObject* plain_fused_add_rms_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View x, residual, weight;
  float eps = 0, offset = 0;
  if (n != 5 || !plain(given[0], x) || !plain(given[1], residual) || !plain(given[2], weight) ||
      !number(given[3], eps) || !number(given[4], offset) || !same_matrix(residual, x) ||
      !is_row_of(weight, x)) {
    return not_plain();
  }
  return run([&] {
    fused_add_rms_norm(
        chosen().table, x.storage,
        {x.data, residual.data, weight.data, x.rows, x.columns, x.columns, x.columns, eps, offset});
  });
}

// (out, x, weight, bias or None, eps)
PyObject* plain_layer_norm(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight, bias;
  float eps = 0;
  if (n != 5 || !plain(given[0], out) || !plain(given[1], x) || !plain(given[2], weight) ||
      !number(given[4], eps) || !same_matrix(out, x) || !is_row_of(weight, x)) {
    return not_plain();
  }
  const bool has_bias = given[3] != Py_None;
  if (has_bias && (!plain(given[3], bias) || !is_row_of(bias, x))) return not_plain();
  return run([&] {
    layer_norm(chosen().table, x.storage,
               {out.data, x.data, weight.data, has_bias ? bias.data : nullptr, x.rows, x.columns, x.columns,
                x.columns, eps});
  });
}

// (out, x, weight, bias or None), and of a weight in panels (out_features, in_features)
template <int form>
PyObject* plain_linear(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, weight, bias;
  if (n != (form == kPanels ? 6 : 4) || !plain(given[0], out) || !plain(given[1], x) ||
      !plain(given[2], weight) || out.dimensions != 2 || x.dimensions != 2 || weight.dimensions != 2 ||
      x.storage != out.storage || x.storage != weight.storage || x.rows != out.rows) {
    return not_plain();
  }
  const bool has_bias = given[3] != Py_None;
  if (has_bias && (!plain(given[3], bias) || !is_row_of(bias, out))) return not_plain();
  if (form == kPanels) {
    if (PyLong_AsLongLong(given[4]) != out.columns || PyLong_AsLongLong(given[5]) != x.columns ||
        weight.rows != (out.columns + kPanelColumns - 1) / kPanelColumns ||
        weight.columns != panel_elements(x.columns)) {
      return not_plain();
    }
  } else if (weight.rows != out.columns || weight.columns != x.columns) {
    return not_plain();
  }
  return run([&] {
    matmul(chosen().table, form, x.storage,
           {out.data,
            x.data,
            has_bias ? bias.data : nullptr,
            weight.data,
            nullptr,
            {out.columns, x.columns, 0, false},
            x.rows,
            out.columns,
            x.columns});
  });
}

// (out, x)
template <Function function>
PyObject* plain_activation(PyObject*, PyObject* const* given, Py_ssize_t n) {
  constexpr int64_t kHalves = function <= Function::gelu_tanh_and_mul ? 2 : 1;
  View out, x;
  if (n != 2 || !plain(given[0], out) || !plain(given[1], x) || out.dimensions != 2 || x.dimensions != 2 ||
      out.storage != x.storage || out.rows != x.rows || out.columns * kHalves != x.columns) {
    return not_plain();
  }
  return run([&] {
    activation(chosen().table, function, x.storage,
               {out.data, x.data, x.rows, out.columns, out.columns, x.columns});
  });
}

// (out, x), whose storage types differ
PyObject* plain_convert(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x;
  if (n != 2 || !plain(given[0], out) || !plain(given[1], x) || out.dimensions != 2 || x.dimensions != 2 ||
      out.storage == x.storage || out.rows != x.rows || out.columns != x.columns) {
    return not_plain();
  }
  return run([&] {
    convert(chosen().table, out.storage, x.storage,
            {out.data, x.data, x.rows, x.columns, x.columns, x.columns});
  });
}

// (positions, query, key, cos_sin_cache, interleaved)
PyObject* plain_rotary_embedding(PyObject*, PyObject* const* given, Py_ssize_t n) {
  Numbers<int64_t> positions;
  Numbers<float> cache;
  Heads query, key;
  if (n != 5 || !plain(given[0], positions) || !plain(given[1], query) || !plain(given[2], key) ||
      !plain(given[3], cache) || !PyBool_Check(given[4]) || !is_vector(positions, query.tokens) ||
      key.storage != query.storage || key.tokens != query.tokens || key.head_dim != query.head_dim ||
      !query.apart() || !key.apart() || cache.dimensions != 2 || cache.columns % 2 != 0 ||
      cache.columns > query.head_dim) {
    return not_plain();
  }
  const bool interleaved = given[4] == Py_True;
  return run([&] {
    rotary_embedding(chosen().table, query.storage,
                     {positions.values, query.data, key.data, cache.values, query.tokens, query.heads,
                      key.heads, query.head_dim, cache.columns, query.token_stride, query.head_stride,
                      key.token_stride, key.head_stride, cache.stride, interleaved},
                     cache.rows);
  });
}

// A KV cache and its layout, as a KVCacheLayout describes it.
struct Cache {
  Storage storage;
  KvCacheType type;
  KvCacheShape shape;
  KvCacheLayout layout;
  Numbers<uint8_t> blocks;
};

constexpr uintptr_t kAlignment = 64;

// False unless the layout is the one of this process.
bool plain(PyObject* object, PyObject* description, Cache& cache) {
  int64_t known[8];
  PyObject* target = nullptr;
  if (!plain(object, cache.blocks) || !described(description, known, target) || known[0] < 0 ||
      known[0] > static_cast<int>(Storage::bf16) || known[1] < 0 ||
      known[1] > static_cast<int>(KvCacheType::int8)) {
    return false;
  }
  cache.storage = static_cast<Storage>(known[0]);
  cache.type = static_cast<KvCacheType>(known[1]);
  cache.shape = {known[2], known[3], known[4]};
  try {
    cache.layout = kv_cache_layout(chosen().table, cache.storage, cache.type, cache.shape);
  } catch (const std::exception&) {
    return false;
  }
  return known[5] == cache.layout.block_bytes && known[6] == cache.layout.head_stride_bytes &&
         known[7] == cache.layout.value_offset_bytes &&
         is(target, kv_cache_target(cache.storage, cache.type)) && cache.blocks.dimensions == 2 &&
         cache.blocks.columns == known[5] && (cache.blocks.rows <= 1 || cache.blocks.stride == known[5]) &&
         reinterpret_cast<uintptr_t>(cache.blocks.data) % kAlignment == 0;
}

bool of_cache(const Heads& view, const Cache& cache) {
  return view.storage == cache.storage && view.head_dim == cache.shape.head_dim;
}

// (key, value, cache, layout, slot_mapping)
PyObject* plain_write_kv_cache(PyObject*, PyObject* const* given, Py_ssize_t n) {
  Heads key, value;
  Cache cache;
  Numbers<int64_t> slots;
  if (n != 5 || !plain(given[0], key) || !plain(given[1], value) || !plain(given[2], given[3], cache) ||
      !plain(given[4], slots) || !of_cache(key, cache) || !of_cache(value, cache) ||
      key.heads != cache.shape.num_kv_heads || value.heads != key.heads || value.tokens != key.tokens ||
      !is_vector(slots, key.tokens)) {
    return not_plain();
  }
  return run([&] {
    write_kv_cache(chosen().table, cache.storage, cache.type,
                   {key.data, value.data, cache.blocks.data, slots.values, cache.shape, cache.layout,
                    key.tokens, key.token_stride, key.head_stride, value.token_stride, value.head_stride},
                   cache.blocks.rows);
  });
}

// None, or a float per head.
bool per_head(PyObject* object, int64_t heads, const float*& data) {
  Numbers<float> view;
  data = nullptr;
  if (object == Py_None) return true;
  if (!plain(object, view) || !is_vector(view, heads)) return false;
  data = view.values;
  return true;
}

// (out, query, cache, layout, block_tables, query_start_loc, seq_lens, scale, sliding_window or None,
// logit_soft_cap or None, alibi_slopes or None, sinks or None)
PyObject* plain_paged_attention(PyObject*, PyObject* const* given, Py_ssize_t n) {
  Heads out, query;
  Cache cache;
  Numbers<int32_t> tables, starts, lengths;
  float scale = 0, cap = 0;
  const float *slopes = nullptr, *sinks = nullptr;
  int64_t window = std::numeric_limits<int64_t>::max();
  if (n != 12 || !plain(given[0], out) || !plain(given[1], query) || !plain(given[2], given[3], cache) ||
      !plain(given[4], tables) || !plain(given[5], starts) || !plain(given[6], lengths) ||
      !number(given[7], scale) || !of_cache(query, cache) || !of_cache(out, cache) || !out.apart() ||
      out.tokens != query.tokens || out.heads != query.heads || query.heads < 1 ||
      query.heads % cache.shape.num_kv_heads != 0 || tables.dimensions != 2 ||
      !is_vector(starts, tables.rows + 1) || !is_vector(lengths, tables.rows) ||
      !per_head(given[10], query.heads, slopes) || !per_head(given[11], query.heads, sinks)) {
    return not_plain();
  }
  if (given[8] != Py_None && ((window = PyLong_AsLongLong(given[8])) < 1 || PyErr_Occurred() != nullptr)) {
    return not_plain();
  }
  if (given[9] != Py_None && (!number(given[9], cap) || !(cap > 0) || std::isinf(cap))) return not_plain();
  return run([&] {
    paged_attention(chosen().table, cache.storage, cache.type,
                    {out.data,
                     query.data,
                     cache.blocks.data,
                     tables.values,
                     starts.values,
                     lengths.values,
                     cache.shape,
                     cache.layout,
                     tables.rows,
                     query.heads,
                     tables.columns,
                     tables.stride,
                     out.token_stride,
                     out.head_stride,
                     query.token_stride,
                     query.head_stride,
                     scale,
                     window,
                     cap,
                     slopes,
                     sinks},
                    cache.blocks.rows, query.tokens);
  });
}

// (out, x, weight.data, weight's description, bias or None, x_scale or None)
template <int bits>
PyObject* plain_matmul(PyObject*, PyObject* const* given, Py_ssize_t n) {
  View out, x, bias;
  Numbers<uint8_t> weight;
  int64_t known[5];
  PyObject* layout = nullptr;
  if (n != 6 || !plain(given[0], out) || !plain(given[1], x) || !plain(given[2], weight) ||
      !described(given[3], known, layout) || known[0] != bits || out.dimensions != 2 || x.dimensions != 2 ||
      x.storage != out.storage || x.rows != out.rows || out.columns != known[1] || x.columns != known[2]) {
    return not_plain();
  }
  const bool has_bias = given[4] != Py_None;
  float x_scale = 0;
  if ((has_bias && (!plain(given[4], bias) || !is_row_of(bias, out))) ||
      (given[5] != Py_None && (!number(given[5], x_scale) || !(x_scale > 0) || std::isinf(x_scale)))) {
    return not_plain();
  }
  const WeightShape shape{known[1], known[2], known[3], known[4] != 0};
  try {
    if (!is_vector(weight, packed_bytes(chosen().table, bits, shape)) ||
        reinterpret_cast<uintptr_t>(weight.data) % kAlignment != 0 ||
        !is(layout, matmul_kernel(chosen().table, bits, x.storage).layout->name)) {
      return not_plain();
    }
  } catch (const std::exception&) {
    return not_plain();
  }
  return run([&] {
    matmul(chosen().table, bits, x.storage,
           {out.data, x.data, has_bias ? bias.data : nullptr, weight.data, nullptr, shape, x.rows,
            out.columns, x.columns, x_scale});
  });
}

template <class F>
PyMethodDef method(const char* name, F* function) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL,
          nullptr};
}

}  // namespace

const std::string& kv_cache_target(Storage storage, KvCacheType cache) {
  constexpr Op kOps[2][3] = {
      {Op::kv_cache_layout_f32, Op::kv_cache_layout_f16, Op::kv_cache_layout_bf16},
      {Op::kv_cache_layout_int8_f32, Op::kv_cache_layout_int8_f16, Op::kv_cache_layout_int8_bf16}};
  const Op op = kOps[static_cast<int>(cache)][static_cast<int>(storage)];
  return chosen().target[static_cast<size_t>(op)];
}

bool add_plain_calls(PyObject* module) {
  static PyMethodDef methods[] = {
      method("plain_types", plain_types),
      method("plain_rms_norm", plain_rms_norm),
      method("plain_fused_add_rms_norm", plain_fused_add_rms_norm),
      method("plain_layer_norm", plain_layer_norm),
      method("plain_linear", plain_linear<kDense>),
      method("plain_panel_linear", plain_linear<kPanels>),
      method("plain_silu_and_mul", plain_activation<Function::silu_and_mul>),
      method("plain_gelu_and_mul", plain_activation<Function::gelu_and_mul>),
      method("plain_gelu_tanh_and_mul", plain_activation<Function::gelu_tanh_and_mul>),
      method("plain_gelu", plain_activation<Function::gelu>),
      method("plain_gelu_tanh", plain_activation<Function::gelu_tanh>),
      method("plain_quick_gelu", plain_activation<Function::quick_gelu>),
      method("plain_relu", plain_activation<Function::relu>),
      method("plain_convert", plain_convert),
      method("plain_rotary_embedding", plain_rotary_embedding),
      method("plain_write_kv_cache", plain_write_kv_cache),
      method("plain_paged_attention", plain_paged_attention),
      method("plain_matmul_w4a8", plain_matmul<4>),
      method("plain_matmul_w8a8", plain_matmul<8>),
      {nullptr, nullptr, 0, nullptr},
  };
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace armllm
