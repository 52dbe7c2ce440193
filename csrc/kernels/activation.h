// Gated activations. exp(-g) overflows to infinity below g = -88.37, where silu(g) then is -0 instead of a
// number above -4e-37.

ARMLLM_INLINE Vf silu(Vf g) {
  const Vf one = splat(1.0f);
  return div(g, add(one, exp(sub(zero(), g))));
}

template <class T>
ARMLLM_INLINE void silu_and_mul(const ActivationArgs& a, int64_t begin, int64_t end) {
  const int64_t chunks = (a.width + kActivationChunk - 1) / kActivationChunk;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t row = unit / chunks;
    const int64_t first = unit % chunks * kActivationChunk;
    const int64_t n = a.width - first < kActivationChunk ? a.width - first : kActivationChunk;
    const T* gate = static_cast<const T*>(a.x) + row * a.x_stride + first;
    const T* up = gate + a.width;
    T* out = static_cast<T*>(a.out) + row * a.out_stride + first;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, mul(silu(load(gate + i)), load(up + i)));
    if (i < n) {
      store_first(out + i, mul(silu(load_first(gate + i, n - i)), load_first(up + i, n - i)), n - i);
    }
  }
}
