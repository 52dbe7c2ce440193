// rms_norm and fused_add_rms_norm. Two passes over a row: the sum of squares, then the scaled output.

// Four accumulators hide the latency of a fused multiply-add and shorten the chain of roundings.
template <class T>
ARMLLM_INLINE float sum_of_squares(const T* x, int64_t n) {
  Vf a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const Vf x0 = load(x + i), x1 = load(x + i + kLanes);
    const Vf x2 = load(x + i + 2 * kLanes), x3 = load(x + i + 3 * kLanes);
    a = fma(x0, x0, a);
    b = fma(x1, x1, b);
    c = fma(x2, x2, c);
    d = fma(x3, x3, d);
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vf v = load(x + i);
    a = fma(v, v, a);
  }
  if (i < n) {
    const Vf v = load_first(x + i, n - i);
    b = fma(v, v, b);
  }
  return reduce_add(add(add(a, b), add(c, d)));
}

template <class T>
ARMLLM_INLINE void scale_row(T* out, const T* x, const T* weight, int64_t n, float scale,
                             float weight_offset) {
  const Vf s = splat(scale), w0 = splat(weight_offset);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, mul(mul(load(x + i), s), add(load(weight + i), w0)));
  }
  if (i < n) {
    const Vf w = add(load_first(weight + i, n - i), w0);
    store_first(out + i, mul(mul(load_first(x + i, n - i), s), w), n - i);
  }
}

ARMLLM_INLINE float rms_scale(float sum_of_squares, int64_t n, float eps) {
  return 1.0f / sqrtf(sum_of_squares / static_cast<float>(n) + eps);
}

template <class T>
ARMLLM_INLINE void rms_norm(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    const float scale = rms_scale(sum_of_squares(x, a.hidden), a.hidden, a.eps);
    scale_row(out, x, static_cast<const T*>(a.weight), a.hidden, scale, a.weight_offset);
  }
}

template <class T>
ARMLLM_INLINE void add_row(T* residual, const T* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(residual + i, add(load(x + i), load(residual + i)));
  if (i < n) {
    store_first(residual + i, add(load_first(x + i, n - i), load_first(residual + i, n - i)), n - i);
  }
}

template <class T>
ARMLLM_INLINE void fused_add_rms_norm(const FusedAddRmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* x = static_cast<T*>(a.x) + row * a.x_stride;
    T* residual = static_cast<T*>(a.residual) + row * a.residual_stride;
    add_row(residual, x, a.hidden);
    const float scale = rms_scale(sum_of_squares(residual, a.hidden), a.hidden, a.eps);
    scale_row(x, residual, static_cast<const T*>(a.weight), a.hidden, scale, a.weight_offset);
  }
}
