// Rotary embedding: (a, b) becomes (a cos - b sin, b cos + a sin).

#pragma once

#include "simd/primitives.h"

ARMLLM_INLINE void rotate(Vf& a, Vf& b, Vf cosine, Vf sine) {
  const Vf x = a;
  a = sub(mul(x, cosine), mul(b, sine));
  b = add(mul(b, cosine), mul(x, sine));
}

template <class T>
ARMLLM_INLINE void rotate_halves(T* x, const float* cosine, const float* sine, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Vf a = load(x + i), b = load(x + half + i);
    rotate(a, b, load(cosine + i), load(sine + i));
    store(x + i, a);
    store(x + half + i, b);
  }
  if (i < half) {
    const int64_t n = half - i;
    Vf a = load_first(x + i, n), b = load_first(x + half + i, n);
    rotate(a, b, load_first(cosine + i, n), load_first(sine + i, n));
    store_first(x + i, a, n);
    store_first(x + half + i, b, n);
  }
}

template <class T>
ARMLLM_INLINE void rotate_neighbors(T* x, const float* cosine, const float* sine, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Vf a, b;
    load_pairs(x + 2 * i, a, b);
    rotate(a, b, load(cosine + i), load(sine + i));
    store_pairs(x + 2 * i, a, b);
  }
  if (i < half) {
    const int64_t n = half - i;
    Vf a, b;
    load_pairs_first(x + 2 * i, a, b, n);
    rotate(a, b, load_first(cosine + i, n), load_first(sine + i, n));
    store_pairs_first(x + 2 * i, a, b, n);
  }
}

template <class T>
ARMLLM_INLINE void rotary_embedding(const RotaryArgs& a, int64_t begin, int64_t end) {
  const int64_t heads = a.num_query_heads + a.num_key_heads;
  const int64_t half = a.rotary_dim / 2;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t token = unit / heads;
    const int64_t head = unit % heads;
    const float* cosine = a.cos_sin_cache + a.positions[token] * a.cache_stride;
    T* x = head < a.num_query_heads
               ? static_cast<T*>(a.query) + token * a.query_token_stride + head * a.query_head_stride
               : static_cast<T*>(a.key) + token * a.key_token_stride +
                     (head - a.num_query_heads) * a.key_head_stride;
    if (a.interleaved) {
      rotate_neighbors(x, cosine, cosine + half, half);
    } else {
      rotate_halves(x, cosine, cosine + half, half);
    }
  }
}
