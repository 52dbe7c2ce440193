// FMLAL for kernels/attention.h: products of two binary16 numbers, exact, added to floats. A load brings
// eight elements, and each row costs two instructions for them.

#pragma once

#include "simd/primitives.h"

ARMLLM_INLINE float16x4_t load_quad(const float16* p) { return vreinterpret_f16_u16(vld1_u16(&p->bits)); }

template <int i, int M, int V>
ARMLLM_INLINE void multiply_lane(Vf (&acc)[M][V], const float16x4_t (&q)[M], const float16* vectors,
                                 int64_t stride) {
  static_assert(V % 2 == 0, "eight elements are two vectors of floats");
  ARMLLM_UNROLL for (int v = 0; v < V; v += 2) {
    const float16x8_t k = vreinterpretq_f16_u16(vld1q_u16(&vectors[i * stride + v * kLanes].bits));
    ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
      acc[m][v] = vfmlalq_lane_low_f16(acc[m][v], k, q[m], i);
      acc[m][v + 1] = vfmlalq_lane_high_f16(acc[m][v + 1], k, q[m], i);
    }
  }
}
