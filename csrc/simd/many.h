// Several vectors that take every step together: a chain of dependent instructions is too long for an
// out-of-order core to find much beside it. A function of any type V of vectors takes `Vf` and `Many`; its
// constants are second factors, and first in max and min.
//
// Included inside the namespace of a target, after its primitives. SVE's vectors can lie in no structure:
// there one of them is what Many is elsewhere.

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_PIECE_ALONE
#include "simd/neon.h"
#endif

inline constexpr int kMany = 4;
template <int count>
struct Many {
  Vf v[count];
};

// clang-format off
#define ARMLLM_MANY(name, parameters, each)                                \
  template <int count>                                                     \
  ARMLLM_INLINE Many<count> name parameters {                              \
    Many<count> result;                                                    \
    ARMLLM_UNROLL for (int i = 0; i < count; ++i) result.v[i] = name each; \
    return result;                                                         \
  }
ARMLLM_MANY(add, (const Many<count>& a, const Many<count>& b), (a.v[i], b.v[i]))
ARMLLM_MANY(add, (const Many<count>& a, Vf b), (a.v[i], b))
ARMLLM_MANY(sub, (const Many<count>& a, const Many<count>& b), (a.v[i], b.v[i]))
ARMLLM_MANY(sub, (const Many<count>& a, Vf b), (a.v[i], b))
ARMLLM_MANY(sub, (Vf a, const Many<count>& b), (a, b.v[i]))
ARMLLM_MANY(mul, (const Many<count>& a, const Many<count>& b), (a.v[i], b.v[i]))
ARMLLM_MANY(mul, (const Many<count>& a, Vf b), (a.v[i], b))
ARMLLM_MANY(fma, (const Many<count>& a, const Many<count>& b, const Many<count>& c), (a.v[i], b.v[i], c.v[i]))
ARMLLM_MANY(fma, (const Many<count>& a, Vf b, const Many<count>& c), (a.v[i], b, c.v[i]))
ARMLLM_MANY(max, (Vf a, const Many<count>& b), (a, b.v[i]))
ARMLLM_MANY(min, (Vf a, const Many<count>& b), (a, b.v[i]))
ARMLLM_MANY(absolute, (const Many<count>& a), (a.v[i]))
ARMLLM_MANY(exponent, (const Many<count>& a), (a.v[i]))
ARMLLM_MANY(where_less, (const Many<count>& a, Vf b, const Many<count>& x, const Many<count>& y),
            (a.v[i], b, x.v[i], y.v[i]))
// clang-format on

template <class Constant, int count>
ARMLLM_INLINE Many<count> addend(const Constant& constant, const Many<count>& after) {
  Many<count> x;
  ARMLLM_UNROLL for (int i = 0; i < count; ++i)
    x.v[i] = addend(constant, after.v[i]);
  return x;
}
template <int count = kMany, class T>
ARMLLM_INLINE Many<count> load_many(const T* p) {
  Many<count> x;
  ARMLLM_UNROLL for (int i = 0; i < count; ++i)
    x.v[i] = load(p + i * kLanes);
  return x;
}
template <class T, int count>
ARMLLM_INLINE void store_many(T* p, const Many<count>& x) {
  ARMLLM_UNROLL for (int i = 0; i < count; ++i)
    store(p + i * kLanes, x.v[i]);
}
ARMLLM_INLINE Many<kMany> splat_many(float x) {
  const Vf v = splat(x);
  return {{v, v, v, v}};
}
ARMLLM_INLINE Vf sum_of(const Many<kMany>& x) { return add(add(x.v[0], x.v[1]), add(x.v[2], x.v[3])); }
