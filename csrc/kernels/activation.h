// Activations, plain and gated, and conversions. Where exp overflows (silu below -88.37), a sigmoid's
// quotient is -0 instead of a number above -4e-37.

#pragma once

#include "simd/primitives.h"

// V is Vf or Many, as everywhere.

// x / (1 + exp(-s))
template <class V>
ARMLLM_INLINE V times_sigmoid(V x, V s) {
  return quotient(x, one_plus_exp_of_minus(s));
}

template <class V>
ARMLLM_INLINE V silu(V x) {
  return times_sigmoid(x, x);
}
template <class V>
ARMLLM_INLINE V quick_gelu(V x) {
  return times_sigmoid(x, mul(x, splat(1.702f)));
}
template <class V>
ARMLLM_INLINE V relu(V x) {
  return max(zero(), x);  // the second operand, should it be a NaN
}

// tanh(y) = 1 - 2 / (1 + exp(2 y)), so (1 + tanh(y)) / 2 is a sigmoid: 2 sqrt(2 / pi) (x + 0.044715 x^3).
ARMLLM_ADDEND(kInner, 0x1.988454p+0f);
template <class V>
ARMLLM_INLINE V gelu_tanh(V x) {
  const V square = mul(x, x);
  return times_sigmoid(x, mul(x, fma(square, splat(0x1.2444f2p-4f), addend(kInner, square))));
}

// x * Phi(x). With z = |x|, Phi(-z) = exp(-z^2 / 2) * t * P(t), t = 1 / (1 + 0.3 z), P of degree 7 with the
// least largest relative error (1.3e-7) on [0, 13.4], where exp is 0 at the end.
ARMLLM_ADDEND(kTail6, -0x1.44987ap-3f);
ARMLLM_ADDEND(kTail5, 0x1.ab2e16p-3f);
ARMLLM_ADDEND(kTail4, -0x1.c8a5fep-5f);
ARMLLM_ADDEND(kTail3, 0x1.0988bap-3f);
ARMLLM_ADDEND(kTail2, 0x1.97e1dap-4f);
ARMLLM_ADDEND(kTail1, 0x1.eed3e8p-4f);
ARMLLM_ADDEND(kTail0, 0x1.e9fcbap-4f);
ARMLLM_ADDEND(kOne, 1.0f);
template <class V>
ARMLLM_INLINE V gelu(V x) {
  const V z = absolute(x), t = reciprocal(fma(z, splat(0.3f), addend(kOne, z)));
  V p = fma(t, splat(0x1.26c790p-5f), addend(kTail6, t));
  p = fma(p, t, addend(kTail5, p));
  p = fma(p, t, addend(kTail4, p));
  p = fma(p, t, addend(kTail3, p));
  p = fma(p, t, addend(kTail2, p));
  p = fma(p, t, addend(kTail1, p));
  p = fma(p, t, addend(kTail0, p));
  const V tail = mul(mul(p, t), exp_of_negative(mul(mul(z, z), splat(-0.5f))));
  return mul(x, where_less(x, zero(), tail, sub(splat(1.0f), tail)));
}

// One element function per struct, so that a loop can be written once.
#define ARMLLM_FUNCTION(name)        \
  struct name##_function {           \
    template <class V>               \
    static ARMLLM_MEMBER V of(V x) { \
      return name(x);                \
    }                                \
  };
ARMLLM_FUNCTION(silu)
ARMLLM_FUNCTION(gelu)
ARMLLM_FUNCTION(gelu_tanh)
ARMLLM_FUNCTION(quick_gelu)
ARMLLM_FUNCTION(relu)
#undef ARMLLM_FUNCTION

// Where a unit of work lies: a chunk of a row.
struct Chunk {
  int64_t row, first, n;
};
ARMLLM_INLINE Chunk chunk_of(const ActivationArgs& a, int64_t unit) {
  const int64_t chunks = (a.width + kActivationChunk - 1) / kActivationChunk;
  const int64_t first = unit % chunks * kActivationChunk, rest = a.width - first;
  return {unit / chunks, first, rest < kActivationChunk ? rest : kActivationChunk};
}

// How many vectors of T a gated function takes at a time: as many as it has registers for.
template <class T, class F>
inline constexpr int kTogether = kMany;
template <class T>
inline constexpr int kTogether<T, silu_function> = kManySilu<T>;

template <class T, class F>
ARMLLM_INLINE void apply_and_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const Chunk chunk = chunk_of(a, unit);
    const T* gate = static_cast<const T*>(a.x) + chunk.row * a.x_stride + chunk.first;
    const T* up = gate + a.width;
    T* out = static_cast<T*>(a.out) + chunk.row * a.out_stride + chunk.first;
    constexpr int kCount = kTogether<T, F>;
    const int64_t step = kCount * kLanes;
    for (int64_t left = chunk.n / step; left > 0; --left) {
      ARMLLM_LOOP("apply_and_mul", kCount);
      store_many(out, mul(F::of(load_many<kCount>(gate)), load_many<kCount>(up)));
      gate += step;
      up += step;
      out += step;
      // Else compilers derive them from one another, by further instructions.
      __asm__("" : "+r"(gate), "+r"(up), "+r"(out), "+r"(left));
    }
    int64_t n = chunk.n % step;
    for (; n >= kLanes; n -= kLanes, gate += kLanes, up += kLanes, out += kLanes) {
      store(out, mul(F::of(load(gate)), load(up)));
    }
    if (n > 0) store_first(out, mul(F::of(load_first(gate, n)), load_first(up, n)), n);
  }
}

template <class Out, class In, class F>
ARMLLM_INLINE void apply(const ActivationArgs& a, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const Chunk chunk = chunk_of(a, unit);
    const In* x = static_cast<const In*>(a.x) + chunk.row * a.x_stride + chunk.first;
    Out* out = static_cast<Out*>(a.out) + chunk.row * a.out_stride + chunk.first;
    const int64_t n = chunk.n;
    int64_t i = 0;
    for (; i + kMany * kLanes <= n; i += kMany * kLanes) {
      ARMLLM_LOOP("apply", kMany);
      store_many(out + i, F::of(load_many(x + i)));
    }
    for (; i + kLanes <= n; i += kLanes) store(out + i, F::of(load(x + i)));
    if (i < n) store_first(out + i, F::of(load_first(x + i, n - i)), n - i);
  }
}

struct identity {
  template <class V>
  static ARMLLM_MEMBER V of(V x) {
    return x;
  }
};
