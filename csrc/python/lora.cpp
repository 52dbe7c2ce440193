// Low-rank adapters.

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

void py_add_lora(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), in_features("in_features"), out_features("out_features"), slots("slots");
  Size parts("parts"), factors("parts * max_rank");
  const Tensor x = TensorMatcher({tokens, in_features}).of(type).match("x", a[1]);
  const Tensor y = TensorMatcher({tokens, out_features}).of(type).written().match("y", a[0]);
  const Tensor ends = TensorMatcher({parts}).of(kInt64).match("part_ends", a[5]);
  const Tensor weight_a = TensorMatcher({slots, factors, in_features}).of(type).contiguous().match("a", a[2]);
  if (parts == 0 || factors % parts != 0) {
    throw std::invalid_argument("a has " + factors.text() + " rows for " + parts.text() +
                                " parts, expected max_rank for each");
  }
  const int64_t max_rank = factors / parts;
  Size of_slot(max_rank * out_features);
  const Tensor weight_b = TensorMatcher({slots, of_slot}).of(type).contiguous().match("b", a[3]);
  const Tensor ranks = TensorMatcher({slots, parts}).of(kInt64).contiguous().match("ranks", a[4]);
  const Tensor of_row = TensorMatcher({tokens}).of(kInt64).match("slots", a[6]);
  const Tensor norms =
      TensorMatcher({slots, out_features}).of(kFloat32).contiguous().match_or_none("norms", a[7]);
  const Tensor bias = TensorMatcher({out_features}).of(kFloat32).match_or_none("bias", a[8]);
  const LoraArgs args{y.data,
                      x.data,
                      weight_a.data,
                      weight_b.data,
                      ranks.of<int64_t>(),
                      ends.of<int64_t>(),
                      norms.of<float>(),
                      bias.of<float>(),
                      slots,
                      parts,
                      max_rank,
                      in_features,
                      out_features,
                      y.stride[0],
                      x.stride[0]};
  run_op([=] { add_lora(dispatched().table, type, args, of_row.of<int64_t>(), tokens); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("add_lora", "y, x, a, b, ranks, part_ends, slots, norms, bias", py_add_lora),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* lora_methods() { return methods; }

}  // namespace armllm
