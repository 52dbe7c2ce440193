// Greatest logits and weights of chunks of a row. A chunk is several vectors at a time, each with its own
// running result.

#pragma once

#include "simd/primitives.h"

namespace sampling {

// What stands behind the row in its last vector becomes `rest`.
ARMLLM_INLINE Vf keep_first(Vf x, int64_t n, float rest) {
  return n < kLanes ? where_less(lane_numbers(), splat(static_cast<float>(n)), x, splat(rest)) : x;
}

template <class V>
ARMLLM_INLINE V weights(const LogitChunksArgs& a, const V& x, const V& nothing) {
  const V below = mul(sub(x, splat(a.greatest)), splat(a.inverse_temperature));
  return where_less(x, splat(a.least), nothing, exp_of_negative(below));
}

ARMLLM_INLINE int64_t chunk_size(const LogitChunksArgs& a, int64_t chunk) {
  const int64_t rest = a.size - chunk * kLogitChunk;
  return rest < kLogitChunk ? rest : kLogitChunk;
}

ARMLLM_INLINE void chunk_maxima(const LogitChunksArgs& a, int64_t begin, int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const float* x = a.logits + chunk * kLogitChunk;
    const int64_t n = chunk_size(a, chunk);
    Vf first = splat(-INFINITY), second = first, third = first, fourth = first;
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
      ARMLLM_LOOP("maxima", 4);
      first = max(first, load(x + i));
      second = max(second, load(x + i + kLanes));
      third = max(third, load(x + i + 2 * kLanes));
      fourth = max(fourth, load(x + i + 3 * kLanes));
    }
    for (; i < n; i += kLanes) first = max(first, keep_first(load_some(x + i, n - i), n - i, -INFINITY));
    a.out[chunk] = reduce_max(max(max(first, second), max(third, fourth)));
  }
}

ARMLLM_INLINE void chunk_weights(const LogitChunksArgs& a, int64_t begin, int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const float* x = a.logits + chunk * kLogitChunk;
    float* out = a.weights == nullptr ? nullptr : a.weights + chunk * kLogitChunk;
    const int64_t n = chunk_size(a, chunk);
    auto total = splat_many(0);
    Vf rest = zero();
    int64_t i = 0;
    for (; i + kMany * kLanes <= n; i += kMany * kLanes) {
      ARMLLM_LOOP("weights", kMany);
      const auto w = weights(a, load_many(x + i), splat_many(0));
      if (out != nullptr) store_many(out + i, w);
      total = add(total, w);
    }
    for (; i < n; i += kLanes) {
      const Vf w = keep_first(weights(a, load_some(x + i, n - i), zero()), n - i, 0);
      if (out != nullptr) store_some(out + i, w, n - i);
      rest = add(rest, w);
    }
    a.out[chunk] = reduce_add(add(sum_of(total), rest));
  }
}

}  // namespace sampling
