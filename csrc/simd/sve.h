// The primitives of scalar.h in SVE, for any vector length. A vector's type has no size: it can be neither in
// an array nor in a structure, and kLanes is known at run time only. Included inside the namespace of a
// target.
//
// ARMLLM_SVE_LANES, a power of two, says how many lanes of a vector are used at most: kLanes is a power of
// two too, then. Arithmetic is in every lane all the same; what is loaded, stored and reduced is not.

#ifndef ARMLLM_INLINE  // opened alone
#include <arm_sve.h>

#include "targets/target.h"
using namespace armllm;
#endif

#undef kLanes
#define kLanes lane_count()

using Vf = svfloat32_t;
using Vu = svuint32_t;

ARMLLM_INLINE svbool_t every() { return svptrue_b32(); }
#if defined(ARMLLM_SVE_LANES)
ARMLLM_INLINE int64_t lane_count() {
  const auto n = static_cast<int64_t>(svcntw());
  return n < ARMLLM_SVE_LANES ? n : ARMLLM_SVE_LANES;
}
ARMLLM_INLINE svbool_t used() { return svwhilelt_b32_s64(0, lane_count()); }
#else
ARMLLM_INLINE int64_t lane_count() { return static_cast<int64_t>(svcntw()); }
ARMLLM_INLINE svbool_t used() { return every(); }
#endif
ARMLLM_INLINE svbool_t first_lanes(int64_t n) { return svwhilelt_b32_s64(0, n); }

ARMLLM_INLINE Vf splat(float x) { return svdup_n_f32(x); }
ARMLLM_INLINE Vf zero() { return svdup_n_f32(0); }

ARMLLM_INLINE Vf add(Vf a, Vf b) { return svadd_f32_x(every(), a, b); }
ARMLLM_INLINE Vf sub(Vf a, Vf b) { return svsub_f32_x(every(), a, b); }
ARMLLM_INLINE Vf mul(Vf a, Vf b) { return svmul_f32_x(every(), a, b); }
ARMLLM_INLINE Vf div(Vf a, Vf b) { return svdiv_f32_x(every(), a, b); }
ARMLLM_INLINE Vf fma(Vf a, Vf b, Vf c) { return svmla_f32_x(every(), c, a, b); }
// c - a * b
ARMLLM_INLINE Vf fnma(Vf a, Vf b, Vf c) { return svmls_f32_x(every(), c, a, b); }
ARMLLM_INLINE Vf reciprocal_estimate(Vf a) { return svrecpe_f32(a); }
ARMLLM_INLINE Vf reciprocal_step(Vf a, Vf y) { return svrecps_f32(a, y); }
#include "simd/quotient.h"
#define ARMLLM_ADDEND(name, x) static constexpr float name = x
ARMLLM_INLINE Vf addend(float x, Vf) { return splat(x); }
ARMLLM_INLINE Vf max(Vf a, Vf b) { return svmax_f32_x(every(), a, b); }
ARMLLM_INLINE Vf min(Vf a, Vf b) { return svmin_f32_x(every(), a, b); }
ARMLLM_INLINE Vf where_less(Vf a, Vf b, Vf x, Vf y) { return svsel_f32(svcmplt_f32(every(), a, b), x, y); }
ARMLLM_INLINE Vf absolute(Vf x) { return svabs_f32_x(every(), x); }
ARMLLM_INLINE Vf lane_numbers() { return svcvt_f32_s32_x(every(), svindex_s32(0, 1)); }
ARMLLM_INLINE float reduce_add(Vf x) { return svaddv_f32(used(), x); }
ARMLLM_INLINE float reduce_max(Vf x) { return svmaxv_f32(used(), x); }

// Sixteen bits in the low half of each lane. Round to nearest even; a NaN stays one (quiet).
ARMLLM_INLINE Vf bf16_to_float(Vu x) { return svreinterpret_f32_u32(svlsl_n_u32_x(every(), x, 16)); }
ARMLLM_INLINE Vu bf16_bits(Vf x) {
  const svbool_t all = every();
  const Vu u = svreinterpret_u32_f32(x), high = svlsr_n_u32_x(all, u, 16);
  const Vu even = svand_n_u32_x(all, high, 1);
  const Vu rounded = svlsr_n_u32_x(all, svadd_u32_x(all, svadd_n_u32_x(all, u, 0x7fff), even), 16);
  return svsel_u32(svcmpuo_f32(all, x, x), svorr_n_u32_x(all, high, 0x40), rounded);
}
ARMLLM_INLINE Vf half_to_float(Vu x) { return svcvt_f32_f16_x(every(), svreinterpret_f16_u32(x)); }
ARMLLM_INLINE Vu half_bits(Vf x) {  // the high half is zero
  return svreinterpret_u32_f16(svcvt_f16_f32_z(every(), x));
}

ARMLLM_INLINE Vf load_lanes(svbool_t lanes, const float* p) { return svld1_f32(lanes, p); }
ARMLLM_INLINE Vf load_lanes(svbool_t lanes, const bfloat16* p) {
  return bf16_to_float(svld1uh_u32(lanes, &p->bits));
}
ARMLLM_INLINE Vf load_lanes(svbool_t lanes, const float16* p) {
  return half_to_float(svld1uh_u32(lanes, &p->bits));
}
ARMLLM_INLINE void store_lanes(svbool_t lanes, float* p, Vf x) { svst1_f32(lanes, p, x); }
ARMLLM_INLINE void store_lanes(svbool_t lanes, bfloat16* p, Vf x) {
  svst1h_u32(lanes, &p->bits, bf16_bits(x));
}
ARMLLM_INLINE void store_lanes(svbool_t lanes, float16* p, Vf x) {
  svst1h_u32(lanes, &p->bits, half_bits(x));
}

// E4M3 without NaN, divided by kFp8Unit: sign, exponent and mantissa where a float has them.
inline constexpr float kFp8Unit = 0x1p120f;
ARMLLM_INLINE Vf load_fp8(const uint8_t* p) {
  const svint32_t wide = svld1sb_s32(used(), reinterpret_cast<const int8_t*>(p));
  const Vu moved = svlsl_n_u32_x(every(), svreinterpret_u32_s32(wide), 20);
  return svreinterpret_f32_u32(svand_n_u32_x(every(), moved, 0x87f00000u));
}

template <class T>
ARMLLM_INLINE Vf load(const T* p) {
  return load_lanes(used(), p);
}
template <class T>
ARMLLM_INLINE void store(T* p, Vf x) {
  store_lanes(used(), p, x);
}
template <class T>
ARMLLM_INLINE Vf load_first(const T* p, int64_t n) {
  return load_lanes(first_lanes(n), p);
}
template <class T>
ARMLLM_INLINE void store_first(T* p, Vf x, int64_t n) {
  store_lanes(first_lanes(n), p, x);
}
#include "simd/some.h"

inline constexpr int kMany = 1;  // as in many.h
template <class T>
inline constexpr int kManySilu = kMany;
template <int count = kMany, class T>
ARMLLM_INLINE Vf load_many(const T* p) {
  return load(p);
}
template <class T>
ARMLLM_INLINE void store_many(T* p, Vf x) {
  store(p, x);
}
ARMLLM_INLINE Vf splat_many(float x) { return splat(x); }
ARMLLM_INLINE Vf sum_of(Vf x) { return x; }

// Pairs: two floats, or two elements of 16 bits in one lane of 32.
ARMLLM_INLINE void load_pairs_first(const float* p, Vf& even, Vf& odd, int64_t n) {
  const svfloat32x2_t x = svld2_f32(first_lanes(n), p);
  even = svget2_f32(x, 0);
  odd = svget2_f32(x, 1);
}
ARMLLM_INLINE void store_pairs_first(float* p, Vf even, Vf odd, int64_t n) {
  svst2_f32(first_lanes(n), p, svcreate2_f32(even, odd));
}
ARMLLM_INLINE Vu load_words(const uint16_t* p, int64_t n) {
  return svreinterpret_u32_u16(svld1_u16(svwhilelt_b16_s64(0, 2 * n), p));
}
ARMLLM_INLINE void store_words(uint16_t* p, Vu even, Vu odd, int64_t n) {
  const Vu x = svorr_u32_x(every(), even, svlsl_n_u32_x(every(), odd, 16));
  svst1_u16(svwhilelt_b16_s64(0, 2 * n), p, svreinterpret_u16_u32(x));
}
ARMLLM_INLINE void load_pairs_first(const bfloat16* p, Vf& even, Vf& odd, int64_t n) {
  const Vu x = load_words(&p->bits, n);
  even = bf16_to_float(x);
  odd = svreinterpret_f32_u32(svand_n_u32_x(every(), x, 0xffff0000u));
}
ARMLLM_INLINE void store_pairs_first(bfloat16* p, Vf even, Vf odd, int64_t n) {
  store_words(&p->bits, bf16_bits(even), bf16_bits(odd), n);
}
ARMLLM_INLINE void load_pairs_first(const float16* p, Vf& even, Vf& odd, int64_t n) {
  const Vu x = load_words(&p->bits, n);
  even = half_to_float(x);
  odd = half_to_float(svlsr_n_u32_x(every(), x, 16));
}
ARMLLM_INLINE void store_pairs_first(float16* p, Vf even, Vf odd, int64_t n) {
  store_words(&p->bits, half_bits(even), half_bits(odd), n);
}
template <class T>
ARMLLM_INLINE void load_pairs(const T* p, Vf& even, Vf& odd) {
  load_pairs_first(p, even, odd, kLanes);
}
template <class T>
ARMLLM_INLINE void store_pairs(T* p, Vf even, Vf odd) {
  store_pairs_first(p, even, odd, kLanes);
}
