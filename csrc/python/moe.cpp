// Mixtures of experts.

#include <pybind11/pybind11.h>

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "gatherer.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

Function function_of(PyObject* activation) {
  const std::string_view name = text("activation", activation);
  if (name == "silu") return Function::silu_and_mul;
  if (name == "gelu") return Function::gelu_and_mul;
  if (name == "gelu_tanh") return Function::gelu_tanh_and_mul;
  throw std::invalid_argument("activation is '" + std::string(name) +
                              "', expected one of silu, gelu, gelu_tanh");
}

// The gather of MoeArgs; None: empty.
decltype(MoeArgs::gather) gather_of(PyObject* object, int64_t part, int64_t whole) {
  if (object == Py_None) {
    if (part == whole) return {};
    throw std::invalid_argument("gatherer is None, but the experts have some of their rows only");
  }
  const auto gatherer = pybind11::cast<std::shared_ptr<Gatherer>>(pybind11::handle(object));
  if (gatherer->part != part || gatherer->whole != whole) {
    throw std::invalid_argument("gatherer is for other experts: it makes " + std::to_string(gatherer->whole) +
                                " columns from " + std::to_string(gatherer->part));
  }
  return [gatherer](float* out, const float* x, int64_t rows) {
    constexpr int64_t kFloat = sizeof(float);
    gatherer->ranks->gather({out, x, rows, gatherer->whole * kFloat, gatherer->part * kFloat, kFloat},
                            gatherer->pieces);
  };
}

// alpha and limit in place of an activation: gates and ups are clamped, see MoeArgs. `weights` is "4 bits",
// "8 bits" or a dtype; `experts` describes an Experts: its weights, hidden, part and width, rows of down, how
// many there are, and (group_size, zero_points, scales, values) of both products, and whether they are in
// panels.
void py_moe(PyObject* const* a) {
  const std::string_view weights = text("weights", a[0]);
  const Description experts("experts", a[6], 15);
  if (experts.text(0) != weights) {
    throw std::invalid_argument("experts have weights of " + std::string(experts.text(0)) +
                                "; this op takes " + std::string(weights));
  }
  const WeightForm form = weights == "4 bits"       ? WeightForm::int4
                          : weights == "8 bits"     ? WeightForm::int8
                          : experts.number(14) != 0 ? WeightForm::panels
                                                    : WeightForm::dense;
  StorageType type;
  if (bits_of(form) == 0) type = StorageType(storage_of("weights", weights));
  Size tokens("tokens"), per_token("per_token"), hidden(experts.number(1)), both(2), count(experts.number(5)),
      columns(experts.number(4));
  const int64_t part = experts.number(2), width = experts.number(3);
  const Tensor x = TensorMatcher({tokens, hidden}).of(type).match("x", a[2]);
  const Tensor out = TensorMatcher({tokens, columns}).of(type).written().match("out", a[1]);
  const Tensor ids = TensorMatcher({tokens, per_token}).of(kInt64).contiguous().match("expert_ids", a[3]);
  const Tensor scales =
      TensorMatcher({tokens, per_token}).of(kFloat32).contiguous().match("expert_weights", a[4]);
  const Tensor addresses =
      TensorMatcher({both, count}).of(kInt64).contiguous().match("experts.addresses", a[5]);
  const Function function = function_of(a[7]);
  const float alpha = divisor_or_none("alpha", a[8]), limit = divisor_or_none("limit", a[9]);
  if ((alpha == 0) != (limit == 0)) throw std::invalid_argument("alpha and limit belong together");
  Size gate_up_rows(2 * part);
  const Tensor gate_up_bias =
      TensorMatcher({count, gate_up_rows}).of(kFloat32).contiguous().match_or_none("gate_up_bias", a[10]);
  const Tensor down_bias =
      TensorMatcher({count, columns}).of(kFloat32).contiguous().match_or_none("down_bias", a[11]);
  const auto* const gate_up = addresses.of<const void* const>();
  const MoeArgs args{out.data,
                     x.data,
                     ids.of<int64_t>(),
                     scales.of<float>(),
                     gate_up,
                     gate_up + count,
                     {2 * part, hidden, experts.number(6), experts.number(7) != 0,
                      storage_of("scales", experts.text(8)), values_of("values", experts.text(9))},
                     {columns, width, experts.number(10), experts.number(11) != 0,
                      storage_of("scales", experts.text(12)), values_of("values", experts.text(13))},
                     tokens,
                     per_token,
                     count,
                     out.stride[0],
                     x.stride[0],
                     gate_up_bias.of<float>(),
                     down_bias.of<float>(),
                     alpha,
                     limit,
                     gather_of(a[12], part, width)};
  run_op([=] { moe(dispatched().table, form, type, function, args); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("moe",
                  "weights, out, x, expert_ids, expert_weights, addresses, experts, activation, alpha, "
                  "limit, gate_up_bias, down_bias, gatherer",
                  py_moe),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* moe_methods() { return methods; }

}  // namespace armllm
