// Weights of E4M3 become the storage type, so that the loops for that one multiply them.

#pragma once

#include "simd/primitives.h"

namespace fp8 {

#if !defined(ARMLLM_STORE_DECODED)  // which says that the target brings its own
ARMLLM_INLINE void store_decoded(bfloat16* p, Vf x) { store(p, x); }
#endif
ARMLLM_INLINE void store_decoded(float* p, Vf x) { store(p, x); }
ARMLLM_INLINE void store_decoded(float16* p, Vf x) { store(p, x); }

template <class T>
ARMLLM_INLINE void decode(const DecodeFp8Args& a) {
  T* out = static_cast<T*>(a.out);
  float scales[kFp8Scales];
  for (int64_t i = 0; i < kFp8Scales; i += kLanes) {
    store(scales + i, mul(load(a.scales + i), splat(kFp8Unit)));
  }
#if defined(kLanes)  // SVE, where it is no constant
  for (int64_t k = 0; k < a.count; k += kLanes) {
    ARMLLM_LOOP("decode", 1);
    store_decoded(out + k, mul(load_fp8(a.x + k), load(scales + k % kFp8Scales)));
  }
#else
  for (int64_t k = 0; k < a.count; k += kFp8Scales) {
    ARMLLM_LOOP("decode", kFp8Scales / kLanes);
    ARMLLM_UNROLL for (int64_t i = 0; i < kFp8Scales; i += kLanes)
      store_decoded(out + k + i, mul(load_fp8(a.x + k + i), load(scales + i)));
  }
#endif
}

}  // namespace fp8
