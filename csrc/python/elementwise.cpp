// Norms, rotary embedding, activations and conversions.

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

void py_rms_norm(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), hidden("hidden");
  const Tensor x = TensorMatcher({tokens, hidden}).of(type).match("x", a[1]);
  const Tensor out = TensorMatcher({tokens, hidden}).of(type).written().match("out", a[0]);
  const Tensor weight = TensorMatcher({hidden}).of(type).match("weight", a[2]);
  const float eps = not_negative("eps", a[3]), offset = number("weight_offset", a[4]);
  const RmsNormArgs args{out.data,      x.data,      weight.data, tokens, hidden,
                         out.stride[0], x.stride[0], eps,         offset};
  run_norm([=] { rms_norm(dispatched().table, type, args); },
           [&] { return rms_norm_pieces(dispatched().table, type, args); },
           {args.out, tokens, hidden, args.out_stride, type});
}

void py_fused_add_rms_norm(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), hidden("hidden");
  const Tensor x = TensorMatcher({tokens, hidden}).of(type).written().match("x", a[0]);
  const Tensor residual = TensorMatcher({tokens, hidden}).of(type).written().match("residual", a[1]);
  const Tensor weight = TensorMatcher({hidden}).of(type).match("weight", a[2]);
  const float eps = not_negative("eps", a[3]), offset = number("weight_offset", a[4]);
  const FusedAddRmsNormArgs args{x.data,      residual.data,      weight.data, tokens, hidden,
                                 x.stride[0], residual.stride[0], eps,         offset};
  run_norm([=] { fused_add_rms_norm(dispatched().table, type, args); },
           [&] { return fused_add_rms_norm_pieces(dispatched().table, type, args); },
           {args.x, tokens, hidden, args.x_stride, type});
}

void py_layer_norm(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), hidden("hidden");
  const Tensor x = TensorMatcher({tokens, hidden}).of(type).match("x", a[1]);
  const Tensor out = TensorMatcher({tokens, hidden}).of(type).written().match("out", a[0]);
  const Tensor weight = TensorMatcher({hidden}).of(type).match("weight", a[2]);
  const Tensor bias = TensorMatcher({hidden}).of(type).match_or_none("bias", a[3]);
  const float eps = not_negative("eps", a[4]);
  const Tensor residual = TensorMatcher({tokens, hidden}).of(type).written().match_or_none("residual", a[5]);
  const LayerNormArgs args{out.data, x.data, weight.data,   bias.data,   residual.data,
                           tokens,   hidden, out.stride[0], x.stride[0], residual.stride[0],
                           eps};
  run_norm([=] { layer_norm(dispatched().table, type, args); },
           [&] { return layer_norm_pieces(dispatched().table, type, args); },
           {args.out, tokens, hidden, args.out_stride, type});
}

void py_rotary_embedding(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), heads("query heads"), key_heads("key heads"), head_dim("head_dim");
  Size max_position("max_position"), rotary_dim("rotary_dim");
  const Tensor query = TensorMatcher({tokens, heads, head_dim}).of(type).written().match("query", a[1]);
  const Tensor key = TensorMatcher({tokens, key_heads, head_dim}).of(type).written().match("key", a[2]);
  const Tensor positions = TensorMatcher({tokens}).of(kInt64).match("positions", a[0]);
  const Tensor cache = TensorMatcher({max_position, rotary_dim}).of(kFloat32).match("cos_sin_cache", a[3]);
  const bool interleaved = boolean("interleaved", a[4]);
  if (rotary_dim % 2 != 0 || rotary_dim > head_dim) {
    throw std::invalid_argument("cos_sin_cache has rotary_dim " + rotary_dim.text() +
                                ", expected an even number up to " + head_dim.text());
  }
  const RotaryArgs args{positions.of<int64_t>(),
                        query.data,
                        key.data,
                        cache.of<float>(),
                        tokens,
                        heads,
                        key_heads,
                        head_dim,
                        rotary_dim,
                        query.stride[0],
                        query.stride[1],
                        key.stride[0],
                        key.stride[1],
                        cache.stride[0],
                        interleaved};
  run_op([=] { rotary_embedding(dispatched().table, type, args, max_position); });
}

template <Function function>
void py_activation(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), columns(is_gated(function) ? "2 d" : "d");
  const Tensor x = TensorMatcher({tokens, columns}).of(type).match("x", a[1]);
  if (is_gated(function) && columns % 2 != 0) {
    throw std::invalid_argument("x has " + columns.text() +
                                " columns, expected an even number: gate and up side by side");
  }
  Size width(is_gated(function) ? columns / 2 : columns);
  const Tensor out = TensorMatcher({tokens, width}).of(type).written().match("out", a[0]);
  const ActivationArgs args{out.data, x.data, tokens, width, out.stride[0], x.stride[0]};
  run_activation([=] { activation(dispatched().table, function, type, args); },
                 [&] { return activation_pieces(dispatched().table, function, type, args); },
                 {args.x, tokens, columns, args.x_stride, type});
}

void py_convert(PyObject* const* a) {
  StorageType from, to;
  Size tokens("tokens"), width("d");
  const Tensor x = TensorMatcher({tokens, width}).of(from).match("x", a[1]);
  const Tensor out = TensorMatcher({tokens, width}).of(to).written().match("out", a[0]);
  const ActivationArgs args{out.data, x.data, tokens, width, out.stride[0], x.stride[0]};
  run_op([=] { convert(dispatched().table, to, from, args); });
}

void py_gather_rows(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), num_rows("num_rows"), width("d");
  const Tensor table = TensorMatcher({num_rows, width}).of(type).match("table", a[1]);
  const Tensor out = TensorMatcher({tokens, width}).of(type).written().match("out", a[0]);
  const Tensor rows = TensorMatcher({tokens}).of(kInt64).match("rows", a[2]);
  const GatherRowsArgs args{out.data, table.data,    rows.of<int64_t>(), tokens,
                            width,    out.stride[0], table.stride[0],    num_rows};
  run_op([=] { gather_rows(type, args); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("rms_norm", "out, x, weight, eps, weight_offset", py_rms_norm),
    ARMLLM_METHOD("fused_add_rms_norm", "x, residual, weight, eps, weight_offset", py_fused_add_rms_norm),
    ARMLLM_METHOD("layer_norm", "out, x, weight, bias, eps, residual", py_layer_norm),
    ARMLLM_METHOD("rotary_embedding", "positions, query, key, cos_sin_cache, interleaved",
                  py_rotary_embedding),
#define ARMLLM_BIND(name, ...) ARMLLM_METHOD(#name, "out, x", py_activation<Function::name>),
    ARMLLM_FUNCTIONS(ARMLLM_BIND)
#undef ARMLLM_BIND
        ARMLLM_METHOD("convert", "out, x", py_convert),
    ARMLLM_METHOD("gather_rows", "out, table, rows", py_gather_rows),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* elementwise_methods() { return methods; }

}  // namespace armllm
