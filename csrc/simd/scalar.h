// Vector primitives over the compiler's own vector type of kLanes floats. kLanes = 1 is the plain scalar
// code; the x86 targets compile the same text with 8 and 16 lanes. neon.h has the same interface.
//
// Included inside the namespace of a target, which has defined ARMLLM_LANES.

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_LANES 16
#include <immintrin.h>

#include "targets/target.h"
using namespace armllm;
#endif

inline constexpr int kLanes = ARMLLM_LANES;

typedef float Vf __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef uint32_t Vu __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef int32_t Vi __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef uint16_t Vh __attribute__((vector_size(2 * ARMLLM_LANES)));

ARMLLM_INLINE Vf splat(float x) { return x - Vf{}; }
ARMLLM_INLINE Vf zero() { return Vf{}; }
ARMLLM_INLINE Vu bits(Vf x) { return (Vu)x; }
ARMLLM_INLINE Vf from_bits(Vu x) { return (Vf)x; }
// GCC 12 makes four instructions of the conversion of vectors.
ARMLLM_INLINE Vu widen(Vh x) {
#if ARMLLM_LANES == 16
  return (Vu)_mm512_maskz_cvtepu16_epi32(0xffff, (__m256i)x);
#elif ARMLLM_LANES == 8
  return (Vu)_mm256_cvtepu16_epi32((__m128i)x);
#else
  return __builtin_convertvector(x, Vu);
#endif
}

ARMLLM_INLINE Vf load(const float* p) {
  Vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
ARMLLM_INLINE Vf load(const bfloat16* p) {
  Vh x;
  memcpy(&x, p, sizeof x);
  return from_bits(widen(x) << 16);
}
ARMLLM_INLINE void store(float* p, Vf x) { memcpy(p, &x, sizeof x); }

// Round to nearest even; a NaN stays one (quiet).
ARMLLM_INLINE Vu bf16_bits(Vf x) {
  const Vu u = bits(x);
  const Vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return x == x ? rounded : (u >> 16 | 0x40);
}
ARMLLM_INLINE void store(bfloat16* p, Vf x) {
  const Vh h = __builtin_convertvector(bf16_bits(x), Vh);
  memcpy(p, &h, sizeof h);
}

// binary16. A NaN stays one (quiet).
#if ARMLLM_LANES == 16
// The masked forms (with every lane kept): GCC 12 warns of its own header in the plain ones.
ARMLLM_INLINE Vf half_to_float(Vh x) { return (Vf)_mm512_maskz_cvtph_ps(0xffff, (__m256i)x); }
ARMLLM_INLINE Vh float_to_half(Vf x) {
  return (Vh)_mm512_maskz_cvtps_ph(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif ARMLLM_LANES == 8
ARMLLM_INLINE Vf half_to_float(Vh x) { return (Vf)_mm256_cvtph_ps((__m128i)x); }
ARMLLM_INLINE Vh float_to_half(Vf x) { return (Vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT); }
#else
// Exponent and mantissa move to where a float has them; the product with 2^(127 - 15) mends the exponent's
// bias, subnormals too.
ARMLLM_INLINE Vf half_to_float(Vh x) {
  const Vu u = widen(x);
  const Vu magnitude = (u & 0x7fff) << 13;
  const Vu finite = bits(from_bits(magnitude) * 0x1p112f);
  const Vu other = magnitude | 0x7f800000 | (magnitude > 0x0f800000 ? Vu{} + 0x400000 : Vu{});
  return from_bits((u & 0x8000) << 16 | (magnitude < 0x0f800000 ? finite : other));
}
// Normal numbers: the carry of the rounding runs into the exponent, up to infinity. Subnormal ones: adding
// 0.5 leaves their mantissa, rounded, at the low end.
ARMLLM_INLINE Vh float_to_half(Vf x) {
  const Vu u = bits(x);
  const Vu magnitude = u & 0x7fffffff;
  const Vu normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Vu subnormal = bits(from_bits(magnitude) + 0.5f) - 0x3f000000;
  const Vu other = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : Vu{} + 0x7c00;
  const Vu finite = magnitude < 0x38800000 ? subnormal : normal;
  return __builtin_convertvector((u >> 16 & 0x8000) | (magnitude < 0x47800000 ? finite : other), Vh);
}
#endif
ARMLLM_INLINE Vf load(const float16* p) {
  Vh x;
  memcpy(&x, p, sizeof x);
  return half_to_float(x);
}
ARMLLM_INLINE void store(float16* p, Vf x) {
  const Vh h = float_to_half(x);
  memcpy(p, &h, sizeof h);
}

// E4M3 without NaN, divided by kFp8Unit: sign, exponent and mantissa where a binary16 or a float has them.
#if ARMLLM_LANES == 1
inline constexpr float kFp8Unit = 0x1p120f;
ARMLLM_INLINE Vf load_fp8(const uint8_t* p) {
  return from_bits(Vu{} + ((*p & 0x80u) << 24 | (*p & 0x7fu) << 20));
}
#else
inline constexpr float kFp8Unit = 0x1p8f;
ARMLLM_INLINE Vf load_fp8(const uint8_t* p) {
#if ARMLLM_LANES == 16
  const Vh wide = (Vh)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  const Vh wide = (Vh)_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#endif
  return half_to_float(wide << 7 & static_cast<uint16_t>(0xbf80));
}
#endif

ARMLLM_INLINE Vf add(Vf a, Vf b) { return a + b; }
ARMLLM_INLINE Vf sub(Vf a, Vf b) { return a - b; }
ARMLLM_INLINE Vf mul(Vf a, Vf b) { return a * b; }
ARMLLM_INLINE Vf div(Vf a, Vf b) { return a / b; }
// a * b + c, with one rounding where kFused
inline constexpr bool kFused = kLanes > 1;
ARMLLM_INLINE Vf fma(Vf a, Vf b, Vf c) {
#if ARMLLM_LANES == 16
  return (Vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif ARMLLM_LANES == 8
  return (Vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
// b when either is a NaN
ARMLLM_INLINE Vf max(Vf a, Vf b) { return a > b ? a : b; }
ARMLLM_INLINE Vf min(Vf a, Vf b) { return a < b ? a : b; }
// A constant that a multiply-add adds to.
#define ARMLLM_ADDEND(name, x) static constexpr float name = x
ARMLLM_INLINE Vf addend(float x, Vf) { return splat(x); }
// The low nine bits of each lane become sign and exponent.
ARMLLM_INLINE Vf exponent(Vf x) { return from_bits(bits(x) << 23); }

#if ARMLLM_LANES == 16
// The same sums and choices as below, without memory.
#define ARMLLM_HALVES(combine)                                                                         \
  x = combine(x, __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)); \
  x = combine(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)); \
  x = combine(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)); \
  x = combine(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)); \
  return x[0]
ARMLLM_INLINE Vf larger(Vf x, Vf other) { return max(other, x); }
ARMLLM_INLINE float reduce_add(Vf x) { ARMLLM_HALVES(add); }
ARMLLM_INLINE float reduce_max(Vf x) { ARMLLM_HALVES(larger); }
#undef ARMLLM_HALVES
#else
ARMLLM_INLINE float reduce_add(Vf x) {
  float lane[kLanes];
  store(lane, x);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return lane[0];
}
ARMLLM_INLINE float reduce_max(Vf x) {
  float lane[kLanes];
  store(lane, x);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i + step] > lane[i] ? lane[i + step] : lane[i];
  }
  return lane[0];
}
#endif

// a < b ? x : y, lane by lane
ARMLLM_INLINE Vf where_less(Vf a, Vf b, Vf x, Vf y) { return a < b ? x : y; }
ARMLLM_INLINE Vf absolute(Vf x) { return from_bits(bits(x) & 0x7fffffff); }

// The low eight bits of each lane.
ARMLLM_INLINE void store_low_bytes(int8_t* p, Vu x) {
  typedef int8_t Vb __attribute__((vector_size(ARMLLM_LANES)));
  const Vb bytes = __builtin_convertvector((Vi)x, Vb);
  memcpy(p, &bytes, sizeof bytes);
}

// 0, 1, 2, ...
ARMLLM_INLINE Vf lane_numbers() {
  float index[kLanes];
  for (int i = 0; i < kLanes; ++i) index[i] = static_cast<float>(i);
  return load(index);
}

// Elements 0, 2, 4, ... and 1, 3, 5, ... of 2 * kLanes.
ARMLLM_INLINE void load_pairs(const float* p, Vf& even, Vf& odd) {
  float a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    a[i] = p[2 * i];
    b[i] = p[2 * i + 1];
  }
  even = load(a);
  odd = load(b);
}
ARMLLM_INLINE void store_pairs(float* p, Vf even, Vf odd) {
  float a[kLanes], b[kLanes];
  store(a, even);
  store(b, odd);
  for (int i = 0; i < kLanes; ++i) {
    p[2 * i] = a[i];
    p[2 * i + 1] = b[i];
  }
}
ARMLLM_INLINE void load_pairs(const bfloat16* p, Vf& even, Vf& odd) {
  Vu x;
  memcpy(&x, p, sizeof x);
  even = from_bits(x << 16);
  odd = from_bits(x & 0xffff0000u);
}
ARMLLM_INLINE void store_pairs(bfloat16* p, Vf even, Vf odd) {
  const Vu x = bf16_bits(odd) << 16 | bf16_bits(even);
  memcpy(p, &x, sizeof x);
}

// Two lanes of 16 bits in each of 32, the even element in the low half.
ARMLLM_INLINE Vh low_half(Vu x) { return __builtin_convertvector(x & 0xffff, Vh); }
ARMLLM_INLINE void load_pairs(const float16* p, Vf& even, Vf& odd) {
  Vu x;
  memcpy(&x, p, sizeof x);
  even = half_to_float(low_half(x));
  odd = half_to_float(low_half(x >> 16));
}
ARMLLM_INLINE void store_pairs(float16* p, Vf even, Vf odd) {
  const Vu x = widen(float_to_half(odd)) << 16 | widen(float_to_half(even));
  memcpy(p, &x, sizeof x);
}

// Four consecutive floats, each of which multiplies a whole vector: Arm's by-element FMLA, x86's broadcast
// load.
using Quad = const float*;
ARMLLM_INLINE Quad load_quad(const float* p) { return p; }
template <int i>
ARMLLM_INLINE Vf fma_lane(Vf a, Quad q, Vf c) {
  return fma(a, splat(q[i]), c);
}

// The same address; nothing is loaded from it before what comes before.
template <class T>
ARMLLM_INLINE const T* later(const T* p) {
  asm volatile("" : "+r"(p));
  return p;
}

#include "simd/partial.h"
#include "simd/some.h"
#include "simd/many.h"
template <class T>
inline constexpr int kManySilu = kMany;

// a / b and 1 / b; the Arm targets may be off by three and a half roundings (quotient.h). b is at least 1.
ARMLLM_INLINE Vf quotient(Vf a, Vf b) { return a / b; }
ARMLLM_MANY(quotient, (const Many<count>& a, const Many<count>& b), (a.v[i], b.v[i]))
ARMLLM_INLINE Vf reciprocal(Vf b) { return splat(1.0f) / b; }
ARMLLM_MANY(reciprocal, (const Many<count>& b), (b.v[i]))
