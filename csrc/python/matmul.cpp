// Products: weights as they are, in panels, or of 4 and 8 bits; and how such weights are made.

#include <string.h>

#include <algorithm>
#include <cmath>

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "families.h"
#include "quantized_weight.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

// The product with a weight that is not quantized, into a[0], with the bias a[3].
void float_product(WeightForm form, StorageType& type, PyObject* const* a, Size& tokens,
                   const WeightShape& shape, const Tensor& x, const Tensor& weight) {
  Size out_features(shape.out_features);
  const Tensor out = TensorMatcher({tokens, out_features}).of(type).written().match("out", a[0]);
  const Tensor bias = TensorMatcher({out_features}).of(type).match_or_none("bias", a[3]);
  const MatmulArgs args{out.data, x.data, bias.data,     weight.data, nullptr,
                        shape,    tokens, out.stride[0], x.stride[0]};
  run_product({form, type, args});
}

void py_linear(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), in_features("in_features"), out_features("out_features");
  const Tensor x = TensorMatcher({tokens, in_features}).of(type).match("x", a[1]);
  const Tensor weight =
      TensorMatcher({out_features, in_features}).of(type).contiguous().match("weight", a[2]);
  float_product(WeightForm::dense, type, a, tokens, {out_features, in_features, 0, false}, x, weight);
}

void py_panel_linear(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), in_features("in_features");
  Size out_features(integer("weight.out_features", a[4])), of_weight(integer("weight.in_features", a[5]));
  const Tensor x = TensorMatcher({tokens, in_features}).of(type).match("x", a[1]);
  if (in_features != of_weight) {
    throw std::invalid_argument("x has " + in_features.text() + " features, weight " + of_weight.text());
  }
  Size panels((out_features + kPanelColumns - 1) / kPanelColumns), elements(panel_elements(in_features));
  const Tensor weight = TensorMatcher({panels, elements}).of(type).contiguous().match("weight.data", a[2]);
  float_product(WeightForm::panels, type, a, tokens, {out_features, in_features, 0, false}, x, weight);
}

void py_head_linear(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), heads("heads"), in_features(integer("weight.in_features", a[4]));
  const int64_t rows = integer("weight.out_features", a[3]);
  const Tensor x = TensorMatcher({tokens, heads, in_features}).of(type).match("x", a[1]);
  if (heads == 0 || rows % (heads * kPanelColumns) != 0) {
    throw std::invalid_argument("weight has " + std::to_string(rows) + " rows, expected a multiple of " +
                                std::to_string(kPanelColumns) + " for each of the " + heads.text() +
                                " heads");
  }
  Size out_features(rows / heads), panels(rows / kPanelColumns), elements(panel_elements(in_features));
  const Tensor weight = TensorMatcher({panels, elements}).of(type).contiguous().match("weight.data", a[2]);
  const Tensor out = TensorMatcher({tokens, heads, out_features}).of(type).written().match("out", a[0]);
  const MatmulArgs first{out.data,    x.data,        nullptr,
                         weight.data, nullptr,       {out_features, in_features, 0, false},
                         tokens,      out.stride[0], x.stride[0]};
  const Heads strides{heads, out.stride[1], x.stride[1]};
  run_op([storage = Storage(type), first, strides] {
    head_matmul(dispatched().table, storage, first, strides);
  });
}

void py_fp8_linear(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), in_features("in_features"), groups("groups");
  Size out_features(integer("weight.out_features", a[5])), of_weight(integer("weight.in_features", a[6]));
  const int64_t group_size = integer("weight.group_size", a[7]);
  const Tensor x = TensorMatcher({tokens, in_features}).of(type).match("x", a[1]);
  if (in_features != of_weight) {
    throw std::invalid_argument("x has " + in_features.text() + " features, weight " + of_weight.text());
  }
  if (group_size < 0 || group_size % 4 != 0) {
    throw std::invalid_argument("weight.group_size is " + std::to_string(group_size) +
                                ", expected a multiple of 4");
  }
  Size panels((out_features + kPanelColumns - 1) / kPanelColumns), elements(panel_elements(in_features));
  const Tensor data = TensorMatcher({panels, elements}).of(kUint8).contiguous().match("weight.data", a[2]);
  groups.settle(group_size == 0 ? 1 : (in_features + group_size - 1) / group_size);
  const Tensor scales =
      TensorMatcher({out_features, groups}).of(kFloat32).contiguous().match("weight.scales", a[3]);
  const Tensor out = TensorMatcher({tokens, out_features}).of(type).written().match("out", a[0]);
  const Tensor bias = TensorMatcher({out_features}).of(type).match_or_none("bias", a[4]);
  MatmulArgs args{out.data,  x.data,        bias.data,
                  data.data, nullptr,       {out_features, in_features, group_size, false},
                  tokens,    out.stride[0], x.stride[0]};
  args.fp8_scales = scales.of<float>();
  run_product({WeightForm::fp8, type, args});
}

void py_touch_panels(PyObject* const* a) {
  StorageType type;
  Size panels("panels"), elements("elements");
  const Tensor memory =
      TensorMatcher({panels, elements}).of(type).contiguous().written().match("panels", a[0]);
  const int64_t bytes = panels * elements * bytes_of(type);
  run_op([data = memory.data, bytes] { touch_pages(data, bytes); });
}

void check_rows(const Size& count, const Size& panels, int64_t first) {
  if (first < 0 || count > panels * kPanelColumns || first > panels * kPanelColumns - count) {
    throw std::invalid_argument("rows " + std::to_string(first) + " and on, " + count.text() +
                                ", don't fit into " + panels.text() + " panels");
  }
}

// Rows `first` and on of a weight of E4M3, in panels for products of a dtype.
void py_pack_fp8(PyObject* const* a) {
  Size count("rows"), in_features("in_features"), panels("panels");
  const Tensor rows = TensorMatcher({count, in_features}).of(kUint8).match("weight", a[1]);
  Size elements(panel_elements(in_features));
  const Tensor packed =
      TensorMatcher({panels, elements}).of(kUint8).contiguous().written().match("panels", a[0]);
  const int64_t first = integer("first", a[2]);
  check_rows(count, panels, first);
  const Storage storage = storage_of("dtype", text("dtype", a[3]));
  const PackPanelsArgs args{packed.data, rows.data, first, count, in_features, rows.stride[0]};
  run_op([=] { pack_fp8(dispatched().table, storage, args); });
}

// Rows `first` and on of a weight in panels. The dtypes may differ.
void py_pack_panels(PyObject* const* a) {
  StorageType to, from;
  Size count("rows"), in_features("in_features"), panels("panels");
  const Tensor rows = TensorMatcher({count, in_features}).of(from).match("weight", a[1]);
  Size elements(panel_elements(in_features));
  const Tensor packed = TensorMatcher({panels, elements}).of(to).contiguous().written().match("panels", a[0]);
  const int64_t first = integer("first", a[2]);
  check_rows(count, panels, first);
  const PackPanelsArgs args{packed.data, rows.data, first, count, in_features, rows.stride[0]};
  run_op([=] { pack_panels(dispatched().table, to, from, args); });
}

void py_quantize_rows(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), features("features");
  const Tensor x = TensorMatcher({tokens, features}).of(type).match("x", a[2]);
  const Tensor q = TensorMatcher({tokens, features}).of(kInt8).written().match("q", a[0]);
  const Tensor scales = TensorMatcher({tokens}).of(kFloat32).written().match("scales", a[1]);
  const Tensor zeros = TensorMatcher({tokens}).of(kInt32).written().match_or_none("zeros", a[3]);
  const QuantizeRowsArgs args{q.of<int8_t>(), scales.of<float>(), zeros.of<int32_t>(), x.data,
                              tokens,         features,           q.stride[0],         x.stride[0]};
  run_op([=] { quantize_rows(dispatched().table, type, args); });
}

template <WeightForm form>
void py_matmul(PyObject* const* a) {
  StorageType type;
  QuantizedWeight weight("weight", a[3]);
  if (weight.bits != bits_of(form)) {
    throw std::invalid_argument("weight has " + std::to_string(weight.bits) + " bits; this product takes " +
                                std::to_string(bits_of(form)));
  }
  Size tokens("tokens"), in_features(weight.shape.in_features), out_features(weight.shape.out_features);
  const Tensor x = TensorMatcher({tokens, in_features}).of(type).match("x", a[1]);
  const Tensor out = TensorMatcher({tokens, out_features}).of(type).written().match("out", a[0]);
  const Tensor bias = TensorMatcher({out_features}).of(type).match_or_none("bias", a[4]);
  const void* const data = weight.match("weight.data", a[2]);
  const float x_scale = divisor_or_none("x_scale", a[5]);
  const MatmulArgs args{out.data,     x.data, bias.data,     data,        nullptr,
                        weight.shape, tokens, out.stride[0], x.stride[0], x_scale};
  run_product({form, type, args});
}

const WeightLayout& layout_of(std::string_view target) {
  std::string names;
  for (const TargetLayout& known : kTargetLayouts) {
    if (target == known.target) return *known.layout;
    names += (names.empty() ? "" : ", ") + std::string(known.target);
  }
  throw std::invalid_argument("target is '" + std::string(target) + "', expected one of " + names);
}

int64_t group_size(int64_t features, int64_t groups) {
  if (groups == 1) return 0;
  if (groups != 0 && features % groups == 0) {
    for (const int64_t size : {32, 64, 128}) {
      if (features == groups * size) return size;
    }
  }
  throw std::invalid_argument("scales has " + std::to_string(groups) + " groups for " +
                              std::to_string(features) +
                              " input features, expected 1, or groups of 32, 64, 128");
}

void check_range(const char* name, const Tensor& values, int64_t rows, int64_t columns, int low, int high) {
  int least = 127, most = -128;
  for (int64_t r = 0; r < rows; ++r) {
    const int8_t* row = values.of<int8_t>() + r * values.stride[0];
    for (int64_t c = 0; c < columns; ++c) {
      least = std::min<int>(least, row[c]);
      most = std::max<int>(most, row[c]);
    }
  }
  if (rows * columns != 0 && (least < low || most > high)) {
    throw std::invalid_argument(std::string(name) + " has values from " + std::to_string(least) + " to " +
                                std::to_string(most) + ", expected " + std::to_string(low) + " to " +
                                std::to_string(high));
  }
}

void check_table(const Tensor& q, int64_t rows, int64_t columns, Values values, std::string_view name) {
  bool has[256] = {};
  for (const int8_t value : kTables[static_cast<int>(values)]) has[static_cast<uint8_t>(value)] = true;
  for (int64_t r = 0; r < rows; ++r) {
    const int8_t* row = q.of<int8_t>() + r * q.stride[0];
    for (int64_t c = 0; c < columns; ++c) {
      if (has[static_cast<uint8_t>(row[c])]) continue;
      throw std::invalid_argument("q[" + std::to_string(r) + ", " + std::to_string(c) + "] is " +
                                  std::to_string(row[c]) + ", none of the 16 integers of " +
                                  std::string(name));
    }
  }
}

void check_finite(const char* name, const Tensor& values, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = values.of<float>()[r * values.stride[0] + c];
      if (std::isfinite(value)) continue;
      const char* shown = std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
      throw std::invalid_argument(std::string(name) + "[" + std::to_string(r) + ", " + std::to_string(c) +
                                  "] is " + shown + ", expected a finite number");
    }
  }
}

// What holds all scales exactly. 16 bits only in groups: a single scale of a row is no traffic. bfloat16
// first, so that all matrices of a checkpoint that stores bfloat16 are alike.
Storage narrowest(const Tensor& scales, int64_t rows, int64_t groups) {
  bool bf16 = groups > 1, f16 = groups > 1;
  for (int64_t r = 0; r < rows && (bf16 || f16); ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const float value = scales.of<float>()[r * scales.stride[0] + g];
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      bf16 = bf16 && (bits & 0xffff) == 0;
      // A binary16 number is a multiple of 2^-24, below 2^16, and has eleven bits.
      const float step = value * 0x1p24f;
      f16 = f16 && (bits & 0x1fff) == 0 && std::fabs(value) < 0x1p16f && std::trunc(step) == step;
    }
  }
  return bf16 ? Storage::bf16 : f16 ? Storage::f16 : Storage::f32;
}

// Returns (bytes of the packed weight, its group size, the dtype of its scales, the name of its layout).
PyObject* py_check_quantized(PyObject* const* a) {
  const int weight_bits = bits(a[4]);
  Size out_features("out_features"), in_features("in_features"), groups("groups");
  const Tensor q = TensorMatcher({out_features, in_features}).of(kInt8).match("q", a[0]);
  const Tensor scales = TensorMatcher({out_features, groups}).of(kFloat32).match("scales", a[1]);
  WeightShape shape{out_features, in_features, group_size(in_features, groups),
                    a[2] != Py_None || a[3] != Py_None};
  const Tensor zeros = TensorMatcher({out_features, groups}).of(kInt8).match_or_none("zeros", a[2]);
  if (a[2] != Py_None && a[3] != Py_None) {
    throw std::invalid_argument("offsets and zeros are both given, expected one of them");
  }
  const Tensor offsets = TensorMatcher({out_features, groups}).of(kFloat32).match_or_none("offsets", a[3]);
  check_finite("scales", scales, out_features, groups);
  if (weight_bits == 4) check_range("q", q, out_features, in_features, -8, 7);
  // GPTQ's first format stores zero points less one, which gives 16 of 0 to 15.
  if (weight_bits == 4 && zeros.data != nullptr) check_range("zeros", zeros, out_features, groups, -8, 8);
  if (offsets.data != nullptr) check_finite("offsets", offsets, out_features, groups);
  shape.values = values_of("values", text("values", a[5]));
  const WeightLayout& layout = layout_of(text("target", a[6]));
  shape.scales = narrowest(scales, out_features, groups);
  const std::string scale_dtype(kStorageTypes[static_cast<int>(shape.scales)].name);
  return Py_BuildValue("LLss", static_cast<long long>(packed_bytes(layout, weight_bits, shape)),
                       static_cast<long long>(shape.group_size), scale_dtype.c_str(), layout.name);
}

void py_pack_weight(PyObject* const* a) {
  const int weight_bits = bits(a[4]);
  const WeightLayout& layout = layout_of(text("target", a[6]));
  Size out_features("out_features"), in_features("in_features"), groups("groups");
  const Tensor q = TensorMatcher({out_features, in_features}).of(kInt8).match("q", a[1]);
  const Tensor scales = TensorMatcher({out_features, groups}).of(kFloat32).contiguous().match("scales", a[2]);
  const Tensor offsets =
      TensorMatcher({out_features, groups}).of(kFloat32).contiguous().match_or_none("offsets", a[3]);
  const WeightShape shape{out_features,
                          in_features,
                          group_size(in_features, groups),
                          a[3] != Py_None,
                          narrowest(scales, out_features, groups),
                          values_of("values", text("values", a[5]))};
  Size bytes(packed_bytes(layout, weight_bits, shape));
  const Tensor packed = TensorMatcher({bytes}).of(kUint8).aligned().match("packed", a[0]);
  const PackWeightArgs args{packed.data,         q.of<int8_t>(), scales.of<float>(),
                            offsets.of<float>(), shape,          q.stride[0]};
  const bool known = [&] {
    const WithoutGil released;
    return pack_weight(layout, weight_bits, args);
  }();
  if (!known) check_table(q, out_features, in_features, shape.values, text("values", a[5]));
}

// (name of the layout that the product wants, name of the target that has it, rows of the weight in a panel)
PyObject* py_weight_layout(PyObject* const* a) {
  const CurrentLayout here(bits(a[0]));
  return Py_BuildValue("ssL", here.layout->name, here.target,
                       static_cast<long long>(here.layout->columns_of(bits(a[0]))));
}

// Checks a matrix of a storage type; its dtype and sizes are free where None stands for them.
void py_check_matrix(PyObject* const* a) {
  const std::string name(text("name", a[0]));
  StorageType type;
  if (a[2] != Py_None) type = StorageType(storage_of("dtype", text("dtype", a[2])));
  Size rows = a[3] == Py_None ? Size("rows") : Size(integer("rows", a[3]));
  Size columns = a[4] == Py_None ? Size("columns") : Size(integer("columns", a[4]));
  TensorMatcher matcher({rows, columns});
  if (boolean("contiguous", a[5])) matcher.contiguous();
  matcher.of(type).match(name.c_str(), a[1]);
}

void py_check_packed(PyObject* const* a) {
  const std::string name(text("name", a[0]));
  QuantizedWeight(name.c_str(), a[2]).match((name + ".data").c_str(), a[1]);
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("linear", "out, x, weight, bias", py_linear),
    ARMLLM_METHOD("panel_linear", "out, x, weight, bias, out_features, in_features", py_panel_linear),
    ARMLLM_METHOD("head_linear", "out, x, weight, out_features, in_features", py_head_linear),
    ARMLLM_METHOD("fp8_linear", "out, x, weight, scales, bias, out_features, in_features, group_size",
                  py_fp8_linear),
    ARMLLM_METHOD("touch_panels", "panels", py_touch_panels),
    ARMLLM_METHOD("pack_panels", "panels, weight, first", py_pack_panels),
    ARMLLM_METHOD("pack_fp8", "panels, weight, first, dtype", py_pack_fp8),
    ARMLLM_METHOD("quantize_rows", "q, scales, x, zeros", py_quantize_rows),
    ARMLLM_METHOD("matmul_w4a8", "out, x, data, weight, bias, x_scale", py_matmul<WeightForm::int4>),
    ARMLLM_METHOD("matmul_w8a8", "out, x, data, weight, bias, x_scale", py_matmul<WeightForm::int8>),
    ARMLLM_METHOD("check_quantized", "q, scales, zeros, offsets, bits, values, target", py_check_quantized),
    ARMLLM_METHOD("pack_weight", "packed, q, scales, offsets, bits, values, target", py_pack_weight),
    ARMLLM_METHOD("weight_layout", "bits", py_weight_layout),
    ARMLLM_METHOD("check_matrix", "name, weight, dtype, rows, columns, contiguous", py_check_matrix),
    ARMLLM_METHOD("check_packed", "name, data, weight", py_check_packed),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* matmul_methods() { return methods; }

}  // namespace armllm
