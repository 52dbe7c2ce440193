// Layers with a state per sequence.

#include "arguments.h"
#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "families.h"
#include "recording.h"
#include "tensor.h"

namespace armllm {

namespace {

Sequences match_sequences(PyObject* slots, PyObject* starts) {
  Size count("sequences");
  const Tensor of_slots = TensorMatcher({count}).of(kInt64).match("slots", slots);
  Size ends(count + 1);
  const Tensor of_starts = TensorMatcher({ends}).of(kInt32).match("query_start_loc", starts);
  return {of_slots.of<int64_t>(), of_starts.of<int32_t>(), count};
}

void py_causal_conv(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), channels("channels"), width("width"), slots("slots");
  const Tensor x = TensorMatcher({tokens, channels}).of(type).match("x", a[1]);
  const Tensor out = TensorMatcher({tokens, channels}).of(type).written().match("out", a[0]);
  const Tensor taps = TensorMatcher({width, channels}).of(kFloat32).contiguous().match("taps", a[2]);
  if (width < 2 || width > kMaxConvWidth) {
    throw std::invalid_argument("taps has " + width.text() + " rows, expected 2 to " +
                                std::to_string(kMaxConvWidth));
  }
  const Tensor bias = TensorMatcher({channels}).of(kFloat32).match_or_none("bias", a[3]);
  Size before(width - 1);
  const Tensor states =
      TensorMatcher({slots, before, channels}).of(type).contiguous().written().match("states", a[4]);
  const CausalConvArgs args{out.data,
                            x.data,
                            taps.of<float>(),
                            bias.of<float>(),
                            states.data,
                            match_sequences(a[5], a[6]),
                            channels,
                            width,
                            out.stride[0],
                            x.stride[0],
                            boolean("activated", a[7])};
  run_op([=] { causal_conv(dispatched().table, type, args, tokens, slots); });
}

void py_state_scan(PyObject* const* a) {
  StorageType type;
  Size tokens("tokens"), key_heads("key heads"), key_dim("key_dim"), heads("heads"), value_dim("value_dim");
  Size slots("slots");
  const Tensor query = TensorMatcher({tokens, key_heads, key_dim}).of(type).match("query", a[1]);
  const Tensor key = TensorMatcher({tokens, key_heads, key_dim}).of(type).match("key", a[2]);
  const Tensor value = TensorMatcher({tokens, heads, value_dim}).of(type).match("value", a[3]);
  const Tensor out =
      TensorMatcher({tokens, heads, value_dim}).of(kFloat32).contiguous().written().match("out", a[0]);
  const Tensor decay = TensorMatcher({tokens, heads}).of(kFloat32).contiguous().match("log_decay", a[4]);
  const Tensor strength = TensorMatcher({tokens, heads}).of(kFloat32).contiguous().match("strength", a[5]);
  const Tensor skip = TensorMatcher({heads}).of(kFloat32).match_or_none("skip", a[6]);
  if (key_heads == 0 || heads % key_heads != 0) {
    throw std::invalid_argument("value has " + heads.text() + " heads, expected a multiple of query's " +
                                key_heads.text());
  }
  if (key_dim > kMaxStateKeys) {
    throw std::invalid_argument("key has key_dim " + key_dim.text() + ", expected at most " +
                                std::to_string(kMaxStateKeys));
  }
  Size floats(state_floats(heads, key_dim, value_dim));
  const Tensor states =
      TensorMatcher({slots, floats}).of(kFloat32).contiguous().written().match("states", a[7]);
  const StateScanArgs args{out.of<float>(),
                           query.data,
                           key.data,
                           value.data,
                           decay.of<float>(),
                           strength.of<float>(),
                           skip.of<float>(),
                           states.of<float>(),
                           match_sequences(a[8], a[9]),
                           heads,
                           key_heads,
                           key_dim,
                           value_dim,
                           query.stride[0],
                           query.stride[1],
                           key.stride[0],
                           key.stride[1],
                           value.stride[0],
                           value.stride[1],
                           boolean("delta", a[10])};
  run_op([=] { state_scan(dispatched().table, type, args, tokens, slots); });
}

PyMethodDef methods[] = {
    ARMLLM_METHOD("causal_conv", "out, x, taps, bias, states, slots, query_start_loc, activated",
                  py_causal_conv),
    ARMLLM_METHOD("state_scan",
                  "out, query, key, value, log_decay, strength, skip, states, slots, query_start_loc, delta",
                  py_state_scan),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* recurrence_methods() { return methods; }

}  // namespace armllm
