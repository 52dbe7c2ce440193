// Parts of a vector through a buffer on the stack, for targets without masked loads. Nothing outside the part
// is touched. Included by simd/scalar.h and simd/neon.h.

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_PIECE_ALONE
#include "simd/neon.h"
#endif

// The first n < kLanes lanes; the others are zero.
template <class T>
ARMLLM_INLINE Vf load_first(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
ARMLLM_INLINE void store_first(T* p, Vf x, int64_t n) {
  T buffer[kLanes];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

// The first n < kLanes pairs; the others are zero.
template <class T>
ARMLLM_INLINE void load_pairs_first(const T* p, Vf& even, Vf& odd, int64_t n) {
  T buffer[2 * kLanes] = {};
  for (int64_t i = 0; i < 2 * n; ++i) buffer[i] = p[i];
  load_pairs(buffer, even, odd);
}
template <class T>
ARMLLM_INLINE void store_pairs_first(T* p, Vf even, Vf odd, int64_t n) {
  T buffer[2 * kLanes];
  store_pairs(buffer, even, odd);
  for (int64_t i = 0; i < 2 * n; ++i) p[i] = buffer[i];
}
