// rms_norm, fused_add_rms_norm and layer_norm. Passes over a row: the mean (layer_norm), the sum of squares,
// the scaled output.

#pragma once

#include "simd/primitives.h"

// Four accumulators hide the latency of a fused multiply-add and shorten the chain of
// roundings.
template <class T>
ARMLLM_INLINE float sum_of_squares(const T* x, int64_t n) {
  Vf a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const Vf x0 = load(x + i), x1 = load(x + i + kLanes);
    const Vf x2 = load(x + i + 2 * kLanes), x3 = load(x + i + 3 * kLanes);
    ARMLLM_LOOP("sum_of_squares", 4);
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
ARMLLM_INLINE float sum_of(const T* x, int64_t n) {
  Vf a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    ARMLLM_LOOP("sum_of", 4);
    a = add(a, load(x + i));
    b = add(b, load(x + i + kLanes));
    c = add(c, load(x + i + 2 * kLanes));
    d = add(d, load(x + i + 3 * kLanes));
  }
  for (; i + kLanes <= n; i += kLanes) a = add(a, load(x + i));
  if (i < n) b = add(b, load_first(x + i, n - i));
  return reduce_add(add(add(a, b), add(c, d)));
}

// The sum of (x - mean)^2: a separate pass, since E[x^2] - mean^2 cancels.
template <class T>
ARMLLM_INLINE float sum_of_squared_differences(const T* x, int64_t n, float mean) {
  const Vf m = splat(mean);
  Vf a = zero(), b = zero(), c = zero(), d = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    ARMLLM_LOOP("sum_of_squared_differences", 4);
    const Vf x0 = sub(load(x + i), m), x1 = sub(load(x + i + kLanes), m);
    const Vf x2 = sub(load(x + i + 2 * kLanes), m), x3 = sub(load(x + i + 3 * kLanes), m);
    a = fma(x0, x0, a);
    b = fma(x1, x1, b);
    c = fma(x2, x2, c);
    d = fma(x3, x3, d);
  }
  for (; i + kLanes <= n; i += kLanes) {
    const Vf v = sub(load(x + i), m);
    a = fma(v, v, a);
  }
  if (i < n) {
    // Lanes behind the end hold 0 and must add nothing.
    const Vf v = sub(load_first(x + i, n - i), m);
    const Vf inside = where_less(lane_numbers(), splat(static_cast<float>(n - i)), v, zero());
    b = fma(inside, inside, b);
  }
  return reduce_add(add(add(a, b), add(c, d)));
}

template <class T>
ARMLLM_INLINE void scale_row(T* out, const T* x, const T* weight, int64_t n, float scale,
                             float weight_offset) {
  const Vf s = splat(scale), w0 = splat(weight_offset);
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    ARMLLM_LOOP("scale_row", 2);
    const Vf y = mul(mul(load(x + i), s), add(load(weight + i), w0));
    const Vf z = mul(mul(load(x + i + kLanes), s), add(load(weight + i + kLanes), w0));
    store(out + i, y);
    store(out + i + kLanes, z);
  }
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

template <class T>
ARMLLM_INLINE void layer_norm_row(T* out, const T* x, const T* weight, const T* bias, int64_t n, float mean,
                                  float scale) {
  const Vf m = splat(mean), s = splat(scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vf y = mul(sub(load(x + i), m), s);
    const Vf b = bias == nullptr ? zero() : load(bias + i);
    store(out + i, fma(y, load(weight + i), b));
  }
  if (i < n) {
    const Vf y = mul(sub(load_first(x + i, n - i), m), s);
    const Vf b = bias == nullptr ? zero() : load_first(bias + i, n - i);
    store_first(out + i, fma(y, load_first(weight + i, n - i), b), n - i);
  }
}

template <class T>
ARMLLM_INLINE void layer_norm(const LayerNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(a.x) + row * a.x_stride;
    if (a.residual != nullptr) {
      T* residual = static_cast<T*>(a.residual) + row * a.residual_stride;
      add_row(residual, x, a.hidden);
      x = residual;
    }
    const float mean = sum_of(x, a.hidden) / static_cast<float>(a.hidden);
    const float scale = rms_scale(sum_of_squared_differences(x, a.hidden, mean), a.hidden, a.eps);
    layer_norm_row(static_cast<T*>(a.out) + row * a.out_stride, x, static_cast<const T*>(a.weight),
                   static_cast<const T*>(a.bias), a.hidden, mean, scale);
  }
}
