// The extension module armllm._kernels: pointers and shapes in, nothing that knows a tensor. The functions
// trust their pointers and shapes; armllm/kernels/__init__.py checks them.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "plain.h"

namespace py = pybind11;

namespace armllm {

namespace {

using Address = uintptr_t;

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr): that is what data_ptr() gives
}

void py_rms_norm(Storage storage, Address out, Address x, Address weight, int64_t rows, int64_t hidden,
                 int64_t out_stride, int64_t x_stride, float eps, float weight_offset) {
  const RmsNormArgs args{
      pointer<void>(out), pointer<void>(x), pointer<void>(weight), rows, hidden, out_stride, x_stride, eps,
      weight_offset};
  const py::gil_scoped_release release;
  rms_norm(chosen().table, storage, args);
}

void py_fused_add_rms_norm(Storage storage, Address x, Address residual, Address weight, int64_t rows,
                           int64_t hidden, int64_t x_stride, int64_t residual_stride, float eps,
                           float weight_offset) {
  const FusedAddRmsNormArgs args{pointer<void>(x),
                                 pointer<void>(residual),
                                 pointer<void>(weight),
                                 rows,
                                 hidden,
                                 x_stride,
                                 residual_stride,
                                 eps,
                                 weight_offset};
  const py::gil_scoped_release release;
  fused_add_rms_norm(chosen().table, storage, args);
}

void py_rotary_embedding(Storage storage, Address positions, Address query, Address key,
                         Address cos_sin_cache, int64_t tokens, int64_t num_query_heads,
                         int64_t num_key_heads, int64_t head_dim, int64_t rotary_dim,
                         int64_t query_token_stride, int64_t query_head_stride, int64_t key_token_stride,
                         int64_t key_head_stride, int64_t cache_stride, int64_t max_position,
                         bool interleaved) {
  const RotaryArgs args{pointer<const int64_t>(positions),
                        pointer<void>(query),
                        pointer<void>(key),
                        pointer<const float>(cos_sin_cache),
                        tokens,
                        num_query_heads,
                        num_key_heads,
                        head_dim,
                        rotary_dim,
                        query_token_stride,
                        query_head_stride,
                        key_token_stride,
                        key_head_stride,
                        cache_stride,
                        interleaved};
  const py::gil_scoped_release release;
  rotary_embedding(chosen().table, storage, args, max_position);
}

void py_layer_norm(Storage storage, Address out, Address x, Address weight, Address bias, int64_t rows,
                   int64_t hidden, int64_t out_stride, int64_t x_stride, float eps) {
  const LayerNormArgs args{pointer<void>(out),
                           pointer<void>(x),
                           pointer<void>(weight),
                           pointer<void>(bias),
                           rows,
                           hidden,
                           out_stride,
                           x_stride,
                           eps};
  const py::gil_scoped_release release;
  layer_norm(chosen().table, storage, args);
}

template <Function function>
void py_activation(Storage storage, Address out, Address x, int64_t rows, int64_t width, int64_t out_stride,
                   int64_t x_stride) {
  const ActivationArgs args{pointer<void>(out), pointer<void>(x), rows, width, out_stride, x_stride};
  const py::gil_scoped_release release;
  activation(chosen().table, function, storage, args);
}

void py_convert(Storage to, Storage from, Address out, Address x, int64_t rows, int64_t width,
                int64_t out_stride, int64_t x_stride) {
  const ActivationArgs args{pointer<void>(out), pointer<void>(x), rows, width, out_stride, x_stride};
  const py::gil_scoped_release release;
  convert(chosen().table, to, from, args);
}

// (block_bytes, head_stride_bytes, value_offset_bytes, name of the target that owns the layout)
py::tuple py_kv_cache_layout(Storage storage, KvCacheType cache, int64_t num_kv_heads, int64_t head_dim,
                             int64_t block_size) {
  const KvCacheLayout layout =
      kv_cache_layout(chosen().table, storage, cache, {num_kv_heads, head_dim, block_size});
  return py::make_tuple(layout.block_bytes, layout.head_stride_bytes, layout.value_offset_bytes,
                        kv_cache_target(storage, cache));
}

void py_write_kv_cache(Storage storage, KvCacheType cache_type, Address key, Address value, Address cache,
                       Address slot_mapping, int64_t tokens, int64_t num_kv_heads, int64_t head_dim,
                       int64_t block_size, int64_t num_blocks, int64_t key_token_stride,
                       int64_t key_head_stride, int64_t value_token_stride, int64_t value_head_stride) {
  const KvCacheShape shape{num_kv_heads, head_dim, block_size};
  const WriteKvCacheArgs args{pointer<void>(key),
                              pointer<void>(value),
                              pointer<void>(cache),
                              pointer<const int64_t>(slot_mapping),
                              shape,
                              kv_cache_layout(chosen().table, storage, cache_type, shape),
                              tokens,
                              key_token_stride,
                              key_head_stride,
                              value_token_stride,
                              value_head_stride};
  const py::gil_scoped_release release;
  write_kv_cache(chosen().table, storage, cache_type, args, num_blocks);
}

void py_paged_attention(Storage storage, KvCacheType cache_type, Address out, Address query, Address cache,
                        Address block_tables, Address query_start_loc, Address seq_lens, int64_t num_tokens,
                        int64_t num_seqs, int64_t num_query_heads, int64_t num_kv_heads, int64_t head_dim,
                        int64_t block_size, int64_t num_blocks, int64_t max_blocks,
                        int64_t block_table_stride, int64_t out_token_stride, int64_t out_head_stride,
                        int64_t query_token_stride, int64_t query_head_stride, float scale,
                        int64_t sliding_window, float logit_soft_cap, Address alibi_slopes, Address sinks) {
  const KvCacheShape shape{num_kv_heads, head_dim, block_size};
  const PagedAttentionArgs args{pointer<void>(out),
                                pointer<void>(query),
                                pointer<void>(cache),
                                pointer<const int32_t>(block_tables),
                                pointer<const int32_t>(query_start_loc),
                                pointer<const int32_t>(seq_lens),
                                shape,
                                kv_cache_layout(chosen().table, storage, cache_type, shape),
                                num_seqs,
                                num_query_heads,
                                max_blocks,
                                block_table_stride,
                                out_token_stride,
                                out_head_stride,
                                query_token_stride,
                                query_head_stride,
                                scale,
                                sliding_window,
                                logit_soft_cap,
                                pointer<const float>(alibi_slopes),
                                pointer<const float>(sinks)};
  const py::gil_scoped_release release;
  paged_attention(chosen().table, storage, cache_type, args, num_blocks, num_tokens);
}

void py_quantize_rows(Storage storage, Address q, Address scales, Address zeros, Address x, int64_t rows,
                      int64_t width, int64_t q_stride, int64_t x_stride) {
  const QuantizeRowsArgs args{pointer<int8_t>(q),
                              pointer<float>(scales),
                              pointer<int32_t>(zeros),
                              pointer<void>(x),
                              rows,
                              width,
                              q_stride,
                              x_stride};
  const py::gil_scoped_release release;
  quantize_rows(chosen().table, storage, args);
}

// (name of the layout that matmul wants, name of the target that has it)
py::tuple py_weight_layout(int bits) {
  const Op op = bits == 4 ? Op::matmul_w4a8_f32 : Op::matmul_w8a8_f32;
  return py::make_tuple(matmul_kernel(chosen().table, bits, Storage::f32).layout->name,
                        chosen().target[static_cast<size_t>(op)]);
}

// By name of the target.
std::map<std::string, std::string> py_weight_layouts() {
  std::map<std::string, std::string> names;
  for (const TargetLayout& known : kTargetLayouts) names[known.target] = known.layout->name;
  return names;
}

int64_t py_packed_bytes(const std::string& target, int bits, int64_t out_features, int64_t in_features,
                        int64_t group_size, bool zero_points) {
  return packed_bytes(layout_of_target(target), bits, {out_features, in_features, group_size, zero_points});
}

void py_pack_weight(const std::string& target, int bits, Address packed, Address q, Address scales,
                    Address offsets, int64_t out_features, int64_t in_features, int64_t group_size,
                    int64_t q_stride) {
  const PackWeightArgs args{pointer<void>(packed),
                            pointer<const int8_t>(q),
                            pointer<const float>(scales),
                            pointer<const float>(offsets),
                            {out_features, in_features, group_size, offsets != 0},
                            q_stride};
  const py::gil_scoped_release release;
  pack_weight(layout_of_target(target), bits, args);
}

void py_matmul(int bits, Storage storage, Address out, Address x, Address bias, Address weight, int64_t rows,
               int64_t out_features, int64_t in_features, int64_t group_size, bool zero_points,
               int64_t out_stride, int64_t x_stride, float x_scale) {
  const MatmulArgs args{pointer<void>(out),
                        pointer<void>(x),
                        pointer<void>(bias),
                        pointer<void>(weight),
                        nullptr,
                        {out_features, in_features, group_size, zero_points},
                        rows,
                        out_stride,
                        x_stride,
                        x_scale};
  const py::gil_scoped_release release;
  matmul(chosen().table, bits, storage, args);
}

// gate_up and down hold the addresses of num_experts weights each.
void py_moe(int bits, Storage storage, Function function, Address out, Address x, Address expert_ids,
            Address expert_weights, Address gate_up, Address down, int64_t tokens, int64_t per_token,
            int64_t num_experts, int64_t hidden, int64_t width, int64_t gate_up_group, bool gate_up_zeros,
            int64_t down_group, bool down_zeros, int64_t out_stride, int64_t x_stride) {
  const MoeArgs args{pointer<void>(out),
                     pointer<void>(x),
                     pointer<const int64_t>(expert_ids),
                     pointer<const float>(expert_weights),
                     pointer<const void* const>(gate_up),
                     pointer<const void* const>(down),
                     {2 * width, hidden, gate_up_group, gate_up_zeros},
                     {hidden, width, down_group, down_zeros},
                     tokens,
                     per_token,
                     num_experts,
                     out_stride,
                     x_stride};
  const py::gil_scoped_release release;
  moe(chosen().table, bits, storage, function, args);
}

py::dict report() {
  py::dict result;
  const Choice& choice = chosen();
  for (size_t i = 0; i < static_cast<size_t>(kOpCount); ++i) {
    py::dict entry;
    entry["target"] = choice.target[i];
    entry["why"] = choice.why[i];
    result[op_name(static_cast<Op>(i))] = entry;
  }
  return result;
}

std::vector<std::string> compiled_targets() {
  std::vector<std::string> names;
  for (const Target& target : targets()) {
    if (target.compiled) names.emplace_back(target.name);
  }
  return names;
}

}  // namespace

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Kernels of armllm. Use armllm.kernels, which checks its arguments; these functions don't.";
  py::enum_<Storage>(m, "Storage")
      .value("f32", Storage::f32)
      .value("f16", Storage::f16)
      .value("bf16", Storage::bf16);
  py::enum_<KvCacheType>(m, "KvCacheType")
      .value("plain", KvCacheType::plain)
      .value("int8", KvCacheType::int8);
  m.def("rms_norm", py_rms_norm);
  m.def("fused_add_rms_norm", py_fused_add_rms_norm);
  m.def("rotary_embedding", py_rotary_embedding);
  m.def("layer_norm", py_layer_norm);
  m.def("silu_and_mul", py_activation<Function::silu_and_mul>);
  m.def("gelu_and_mul", py_activation<Function::gelu_and_mul>);
  m.def("gelu_tanh_and_mul", py_activation<Function::gelu_tanh_and_mul>);
  m.def("gelu", py_activation<Function::gelu>);
  m.def("gelu_tanh", py_activation<Function::gelu_tanh>);
  m.def("quick_gelu", py_activation<Function::quick_gelu>);
  m.def("relu", py_activation<Function::relu>);
  m.def("convert", py_convert);
  if (!add_plain_calls(m.ptr())) throw py::error_already_set();
  m.def("kv_cache_layout", py_kv_cache_layout);
  m.def("write_kv_cache", py_write_kv_cache);
  m.def("paged_attention", py_paged_attention);
  m.def("quantize_rows", py_quantize_rows);
  m.def("weight_layout", py_weight_layout);
  m.def("weight_layouts", py_weight_layouts);
  m.def("packed_bytes", py_packed_bytes);
  m.def("pack_weight", py_pack_weight);
  m.def("matmul", py_matmul);
  py::enum_<Function>(m, "Function")
      .value("silu_and_mul", Function::silu_and_mul)
      .value("gelu_and_mul", Function::gelu_and_mul)
      .value("gelu_tanh_and_mul", Function::gelu_tanh_and_mul);
  m.def("moe", py_moe);
  m.def("report", report);
  m.def("targets", compiled_targets);
  m.def("problem", [] { return chosen().problem; });
  m.def("set_num_threads", set_num_threads);
  m.def("get_num_threads", num_threads);
  m.def("use_own_threads", use_own_threads);
  m.def("thread_backend", [] { return std::string(thread_backend()); });
}

}  // namespace armllm
