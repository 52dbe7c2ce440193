// The end of a mixture of experts: each token's rows, weighted and added.

#pragma once

#include "simd/primitives.h"

ARMLLM_INLINE Vf weighted_lanes(const WeightedSumArgs& a, int64_t token, int64_t first, int64_t n) {
  const float* weights = a.weights + token * a.weights_stride;
  const int32_t* rows = a.rows + token * a.terms;
  Vf sum = zero();
  for (int64_t j = 0; j < a.terms; ++j) {
    if (rows[j] < 0) continue;
    const float* x = a.x + rows[j] * a.x_stride + first;
    sum = fma(load_some(x, n), splat(weights[j]), sum);
  }
  return sum;
}

template <class T>
ARMLLM_INLINE void weighted_sum(const WeightedSumArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    T* out = static_cast<T*>(a.out) + t * a.out_stride;
    int64_t i = 0;
    for (; i + kLanes <= a.width; i += kLanes) store(out + i, weighted_lanes(a, t, i, kLanes));
    if (i < a.width) store_first(out + i, weighted_lanes(a, t, i, a.width - i), a.width - i);
  }
}
