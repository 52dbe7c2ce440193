// Four vectors that take every step together: a chain of dependent instructions is too long for an
// out-of-order core to find much beside it. A function of any type V of vectors takes `Vf` and `Many`; its
// constants are second factors, and first in max and min.
//
// Included inside the namespace of a target, after its primitives. SVE's vectors can lie in no structure:
// there Many is one of them.

inline constexpr int kMany = 4;
struct Many {
  Vf v[kMany];
};

// clang-format off
#define ARMLLM_MANY(name, parameters, each)                                \
  ARMLLM_INLINE Many name parameters {                                     \
    Many result;                                                           \
    ARMLLM_UNROLL for (int i = 0; i < kMany; ++i) result.v[i] = name each; \
    return result;                                                         \
  }
ARMLLM_MANY(add, (const Many& a, const Many& b), (a.v[i], b.v[i]))
ARMLLM_MANY(add, (const Many& a, Vf b), (a.v[i], b))
ARMLLM_MANY(sub, (const Many& a, const Many& b), (a.v[i], b.v[i]))
ARMLLM_MANY(sub, (const Many& a, Vf b), (a.v[i], b))
ARMLLM_MANY(sub, (Vf a, const Many& b), (a, b.v[i]))
ARMLLM_MANY(mul, (const Many& a, const Many& b), (a.v[i], b.v[i]))
ARMLLM_MANY(mul, (const Many& a, Vf b), (a.v[i], b))
ARMLLM_MANY(fma, (const Many& a, const Many& b, const Many& c), (a.v[i], b.v[i], c.v[i]))
ARMLLM_MANY(fma, (const Many& a, Vf b, const Many& c), (a.v[i], b, c.v[i]))
ARMLLM_MANY(max, (Vf a, const Many& b), (a, b.v[i]))
ARMLLM_MANY(min, (Vf a, const Many& b), (a, b.v[i]))
ARMLLM_MANY(absolute, (const Many& a), (a.v[i]))
ARMLLM_MANY(exponent, (const Many& a), (a.v[i]))
ARMLLM_MANY(where_less, (const Many& a, Vf b, const Many& x, const Many& y), (a.v[i], b, x.v[i], y.v[i]))
// clang-format on

template <class Constant>
ARMLLM_INLINE Many addend(const Constant& constant, const Many& after) {
  Many x;
  ARMLLM_UNROLL for (int i = 0; i < kMany; ++i)
    x.v[i] = addend(constant, after.v[i]);
  return x;
}
template <class T>
ARMLLM_INLINE Many load_many(const T* p) {
  Many x;
  ARMLLM_UNROLL for (int i = 0; i < kMany; ++i)
    x.v[i] = load(p + i * kLanes);
  return x;
}
template <class T>
ARMLLM_INLINE void store_many(T* p, const Many& x) {
  ARMLLM_UNROLL for (int i = 0; i < kMany; ++i)
    store(p + i * kLanes, x.v[i]);
}
ARMLLM_INLINE Many splat_many(float x) {
  const Vf v = splat(x);
  return {{v, v, v, v}};
}
ARMLLM_INLINE Vf sum_of(const Many& x) { return add(add(x.v[0], x.v[1]), add(x.v[2], x.v[3])); }
