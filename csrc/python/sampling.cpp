// Tokens drawn from logits.

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "tensor.h"

namespace armllm {

namespace {

void py_sample(PyObject* const* a) {
  Size rows("rows"), vocab_size("vocab_size");
  const Tensor logits = TensorMatcher({rows, vocab_size}).of(kFloat32).match("logits", a[1]);
  const Tensor token_ids = TensorMatcher({rows}).of(kInt64).written().match("token_ids", a[0]);
  const Tensor temperatures = TensorMatcher({rows}).of(kFloat32).match("temperatures", a[2]);
  const Tensor top_k = TensorMatcher({rows}).of(kInt64).match("top_k", a[3]);
  const Tensor top_p = TensorMatcher({rows}).of(kFloat64).match("top_p", a[4]);
  const Tensor min_p = TensorMatcher({rows}).of(kFloat64).match("min_p", a[5]);
  const Tensor uniforms = TensorMatcher({rows}).of(kFloat64).match("uniforms", a[6]);
  if (rows > 0 && vocab_size == 0) throw std::invalid_argument("logits has no columns, expected one or more");
  sample(dispatched().table,
         {token_ids.of<int64_t>(), logits.of<float>(), temperatures.of<float>(), top_k.of<int64_t>(),
          top_p.of<double>(), min_p.of<double>(), uniforms.of<double>(), rows, vocab_size, logits.stride[0]});
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("sample", "token_ids, logits, temperatures, top_k, top_p, min_p, uniforms", py_sample),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* sampling_methods() { return methods; }

}  // namespace armllm
