// Activations, plain and gated, and conversions. Where exp overflows (silu below -88.37), a sigmoid's
// quotient is -0 instead of a number above -4e-37.

// x / (1 + exp(-s))
ARMLLM_INLINE Vf times_sigmoid(Vf x, Vf s) { return quotient(x, one_plus_exp_of_minus(s)); }

ARMLLM_INLINE Vf silu(Vf x) { return times_sigmoid(x, x); }
ARMLLM_INLINE Vf quick_gelu(Vf x) { return times_sigmoid(x, mul(x, splat(1.702f))); }
ARMLLM_INLINE Vf relu(Vf x) { return max(zero(), x); }  // the second operand, should it be a NaN

// tanh(y) = 1 - 2 / (1 + exp(2 y)), so (1 + tanh(y)) / 2 is a sigmoid: 2 sqrt(2 / pi) (x + 0.044715 x^3).
ARMLLM_INLINE Vf gelu_tanh(Vf x) {
  const Vf inner = fma(mul(x, x), splat(0x1.2444f2p-4f), splat(0x1.988454p+0f));
  return times_sigmoid(x, mul(x, inner));
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
ARMLLM_INLINE Vf gelu(Vf x) {
  const Vf one = splat(1.0f), z = absolute(x);
  const Vf t = quotient(one, fma(z, splat(0.3f), one));
  Vf p = fma(splat(0x1.26c790p-5f), t, addend(kTail6, t));
  p = fma(p, t, addend(kTail5, p));
  p = fma(p, t, addend(kTail4, p));
  p = fma(p, t, addend(kTail3, p));
  p = fma(p, t, addend(kTail2, p));
  p = fma(p, t, addend(kTail1, p));
  p = fma(p, t, addend(kTail0, p));
  const Vf tail = mul(mul(p, t), exp_of_negative(mul(mul(z, z), splat(-0.5f))));
  return mul(x, where_less(x, zero(), tail, sub(one, tail)));
}

// One element function per struct, so that a loop can be written once.
#define ARMLLM_FUNCTION(name)                            \
  struct name##_function {                               \
    static ARMLLM_MEMBER Vf of(Vf x) { return name(x); } \
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

template <class T, class F>
ARMLLM_INLINE void apply_and_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  for (int64_t unit = begin; unit < end; ++unit) {
    const Chunk chunk = chunk_of(a, unit);
    const T* gate = static_cast<const T*>(a.x) + chunk.row * a.x_stride + chunk.first;
    const T* up = gate + a.width;
    T* out = static_cast<T*>(a.out) + chunk.row * a.out_stride + chunk.first;
    const int64_t n = chunk.n;
    int64_t i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      ARMLLM_LOOP("apply_and_mul", 2);
      const Vf y = mul(F::of(load(gate + i)), load(up + i));
      const Vf z = mul(F::of(load(gate + i + kLanes)), load(up + i + kLanes));
      store(out + i, y);
      store(out + i + kLanes, z);
    }
    for (; i + kLanes <= n; i += kLanes) store(out + i, mul(F::of(load(gate + i)), load(up + i)));
    if (i < n) {
      store_first(out + i, mul(F::of(load_first(gate + i, n - i)), load_first(up + i, n - i)), n - i);
    }
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
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
      ARMLLM_LOOP("apply", 2);
      const Vf y = F::of(load(x + i)), z = F::of(load(x + i + kLanes));
      store(out + i, y);
      store(out + i + kLanes, z);
    }
    for (; i + kLanes <= n; i += kLanes) store(out + i, F::of(load(x + i)));
    if (i < n) store_first(out + i, F::of(load_first(x + i, n - i)), n - i);
  }
}

struct identity {
  static ARMLLM_MEMBER Vf of(Vf x) { return x; }
};
