// The first n elements, up to a vector. Included by scalar.h, neon.h and sve.h, inside the namespace of a
// target.
#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_PIECE_ALONE
#include "simd/neon.h"
#include "simd/partial.h"
#endif

template <class T>
ARMLLM_INLINE Vf load_some(const T* p, int64_t n) {
  return n < kLanes ? load_first(p, n) : load(p);
}
template <class T>
ARMLLM_INLINE void store_some(T* p, Vf x, int64_t n) {
  if (n < kLanes) {
    store_first(p, x, n);
  } else {
    store(p, x);
  }
}
