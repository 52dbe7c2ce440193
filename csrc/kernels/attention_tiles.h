// Register tiles of attention.h with vectors in arrays. M, the rows of a tile, and how many vectors it has
// follow from the number of registers; with few rows more vectors and several accumulators per logit keep the
// multiply-adds independent of each other.

#pragma once

#include "kernels/kv_cache.h"

#if ARMLLM_LANES == 16
inline constexpr int kAccumulators = 24, kRowTile = 8;
#elif ARMLLM_LANES == 8
// Of 16 registers, as many accumulators as hide the latency: with more, compilers spill some.
inline constexpr int kAccumulators = 12, kRowTile = 4;
#elif ARMLLM_LANES == 4
inline constexpr int kAccumulators = 24, kRowTile = 8;
#else
inline constexpr int kAccumulators = 8, kRowTile = 4;
#endif

// The largest power of two that is at most n and at most limit; at least 1.
static constexpr int floor_power_of_two(int n, int limit) {
  int p = 1;
  while (2 * p <= n && 2 * p <= limit) p *= 2;
  return p;
}

template <int i, int M, int V, class K>
ARMLLM_INLINE void multiply_lane(Vf (&acc)[M][V], const Quad (&q)[M], const K* vectors, int64_t stride) {
  ARMLLM_UNROLL for (int v = 0; v < V; ++v) {
    const Vf k = load(vectors + i * stride + v * kLanes);
    ARMLLM_UNROLL for (int m = 0; m < M; ++m)
      acc[m][v] = fma_lane<i>(k, q[m], acc[m][v]);
  }
}

// logits[m, 0..16) = q[m] . keys of one panel * scale.
template <int M, class Q, class K>
ARMLLM_INLINE void panel_logits(const Q* q, const K* keys, int64_t head_dim, float scale, float* logits) {
  constexpr int kVectors = floor_power_of_two(kAccumulators / M, kPanel / kLanes);
  constexpr int kPhases = floor_power_of_two(kAccumulators / (M * kVectors), 4);
  const Vf s = splat(scale);
  for (int64_t first = 0; first < kPanel; first += kVectors * kLanes) {
    Vf acc[kPhases][M][kVectors];
    ARMLLM_UNROLL for (int p = 0; p < kPhases; ++p) {
      ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
        ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v)
          acc[p][m][v] = zero();
      }
    }
    const K* k = keys + first;
    // head_dim is a multiple of 8. A single row waits for loads, which pair better in a longer loop.
    constexpr int64_t kSteps = M == 1 ? 2 : 1;
    for (int64_t d = 0; d < head_dim; d += 4 * kSteps) {
      ARMLLM_LOOP("logits", M);
      ARMLLM_UNROLL for (int64_t step = 0; step < kSteps; ++step, k += 4 * kPanel) {
        decltype(load_quad(q)) quad[M];
        ARMLLM_UNROLL for (int m = 0; m < M; ++m)
          quad[m] = load_quad(q + m * head_dim + d + 4 * step);
        multiply_lane<0>(acc[0 % kPhases], quad, k, kPanel);
        multiply_lane<1>(acc[1 % kPhases], quad, k, kPanel);
        multiply_lane<2>(acc[2 % kPhases], quad, k, kPanel);
        multiply_lane<3>(acc[3 % kPhases], quad, k, kPanel);
      }
    }
    ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
      ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vf x = acc[0][m][v];
        ARMLLM_UNROLL for (int p = 1; p < kPhases; ++p)
          x = add(x, acc[p][m][v]);
        store(logits + m * kChunk + first + v * kLanes, mul(x, s));
      }
    }
  }
}

// The logits of one row for several panels at once, where that is faster; returns for how many.
template <class Q, class K>
ARMLLM_INLINE int64_t row_logits(const Q*, const K* const*, int64_t, int64_t, float, float*) {
  return 0;
}

// values[m, d0 .. d0 + V vectors) = values * factor[m] + P[m, 0..n) V[0..n, d0 ...), values in panels of 16
// tokens.
template <int M, int V, class P, class K>
ARMLLM_INLINE void add_values(const P* p, const K* const* panels, int64_t n, int64_t d0, int64_t head_dim,
                              const float* factor, float* values) {
  Vf acc[M][V];
  ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
    const Vf f = splat(factor[m]);
    ARMLLM_UNROLL for (int v = 0; v < V; ++v) {
      acc[m][v] = mul(load(values + m * head_dim + d0 + v * kLanes), f);
    }
  }
  for (int64_t j = 0; j < n; j += kPanel) {
    const K* x = panels[j / kPanel] + d0;
    const int64_t end = n - j < kPanel ? n : j + kPanel;
    int64_t t = j;
    for (; t + 4 <= end; t += 4, x += 4 * head_dim) {
      ARMLLM_LOOP("values", M);
      decltype(load_quad(p)) quad[M];
      ARMLLM_UNROLL for (int m = 0; m < M; ++m)
        quad[m] = load_quad(p + m * kChunk + t);
      multiply_lane<0>(acc, quad, x, head_dim);
      multiply_lane<1>(acc, quad, x, head_dim);
      multiply_lane<2>(acc, quad, x, head_dim);
      multiply_lane<3>(acc, quad, x, head_dim);
    }
    // What lies behind the last token is anything, a NaN too: 0 * NaN is not 0, so it is never read.
    for (; t < end; ++t, x += head_dim) {
      decltype(load_quad(p)) quad[M];
      ARMLLM_UNROLL for (int m = 0; m < M; ++m)
        quad[m] = load_quad(p + m * kChunk + t);
      multiply_lane<0>(acc, quad, x, head_dim);
    }
  }
  ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
    ARMLLM_UNROLL for (int v = 0; v < V; ++v)
      store(values + m * head_dim + d0 + v * kLanes, acc[m][v]);
  }
}

template <int M, class P, class K>
ARMLLM_INLINE void add_all_values(const P* p, const K* const* panels, int64_t n, int64_t head_dim,
                                  const float* factor, float* values) {
  constexpr int kVectors = floor_power_of_two(kAccumulators / M, 16);
  constexpr int kFew = kLanes >= 8 ? 1 : 8 / kLanes;
  int64_t d = 0;
  for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
    add_values<M, kVectors>(p, panels, n, d, head_dim, factor, values);
  }
  for (; d + kFew * kLanes <= head_dim; d += kFew * kLanes) {
    add_values<M, kFew>(p, panels, n, d, head_dim, factor, values);
  }
  // head_dim is a multiple of 8: half a vector of sixteen lanes may be left.
  if constexpr (kLanes > 8) {
    if (d == head_dim) return;
    const int64_t rest = head_dim - d;
    for (int m = 0; m < M; ++m) {
      Vf acc = mul(load_first(values + m * head_dim + d, rest), splat(factor[m]));
      for (int64_t t = 0; t < n; ++t) {
        const K* x = panels[t / kPanel] + t % kPanel * head_dim + d;
        acc = fma(load_first(x, rest), splat(p[m * kChunk + t]), acc);
      }
      store_first(values + m * head_dim + d, acc, rest);
    }
  }
}
