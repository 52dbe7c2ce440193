// The primitives of scalar.h in Advanced SIMD (Armv8.0). Included inside the namespace of a target.

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_LANES 4
#include <arm_neon.h>

#include "targets/target.h"
using namespace armllm;
#endif

inline constexpr int kLanes = 4;

using Vf = float32x4_t;
using Vu = uint32x4_t;

ARMLLM_INLINE Vf splat(float x) { return vdupq_n_f32(x); }
ARMLLM_INLINE Vf zero() { return vdupq_n_f32(0); }
ARMLLM_INLINE Vu bits(Vf x) { return vreinterpretq_u32_f32(x); }

ARMLLM_INLINE Vf load(const float* p) { return vld1q_f32(p); }
// SHLL runs on one pipe of Neoverse-N1 and V1, USHLL too; there is no cheaper way from one register.
ARMLLM_INLINE Vf load(const bfloat16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
}
ARMLLM_INLINE void store(float* p, Vf x) { vst1q_f32(p, x); }

// Round to nearest even; a NaN stays one (quiet).
#if defined(ARMLLM_BFCVT)
ARMLLM_INLINE uint16x4_t bf16_half(Vf x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }
ARMLLM_INLINE Vu bf16_bits(Vf x) { return vmovl_u16(bf16_half(x)); }
#else
ARMLLM_INLINE Vu bf16_bits(Vf x) {
  const Vu u = vreinterpretq_u32_f32(x);
  const Vu even = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
  const Vu rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), even), 16);
  return vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(0x40)));
}
ARMLLM_INLINE uint16x4_t bf16_half(Vf x) { return vmovn_u32(bf16_bits(x)); }
#endif
ARMLLM_INLINE void store(bfloat16* p, Vf x) { vst1_u16(&p->bits, bf16_half(x)); }

ARMLLM_INLINE Vf load(const float16* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits))); }
ARMLLM_INLINE uint16x4_t float_to_half(Vf x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
ARMLLM_INLINE void store(float16* p, Vf x) { vst1_u16(&p->bits, float_to_half(x)); }

// E4M3 without NaN, divided by kFp8Unit: sign, exponent and mantissa where a float has them.
inline constexpr float kFp8Unit = 0x1p120f;
ARMLLM_INLINE Vf load_fp8(const uint8_t* p) {
  alignas(16) static const uint8_t kHigh[16] = {255, 255, 255, 0, 255, 255, 255, 1,
                                                255, 255, 255, 2, 255, 255, 255, 3};
  uint32_t four;
  memcpy(&four, p, sizeof four);
  const uint8x16_t high =
      vqtbl1q_u8(vreinterpretq_u8_u32(vsetq_lane_u32(four, vdupq_n_u32(0), 0)), vld1q_u8(kHigh));
  const int32x4_t moved = vshrq_n_s32(vreinterpretq_s32_u8(high), 4);
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_s32(moved), vdupq_n_u32(0x87f00000u)));
}

ARMLLM_INLINE Vf add(Vf a, Vf b) { return vaddq_f32(a, b); }
ARMLLM_INLINE Vf sub(Vf a, Vf b) { return vsubq_f32(a, b); }
ARMLLM_INLINE Vf mul(Vf a, Vf b) { return vmulq_f32(a, b); }
ARMLLM_INLINE Vf div(Vf a, Vf b) { return vdivq_f32(a, b); }
ARMLLM_INLINE Vf fma(Vf a, Vf b, Vf c) { return vfmaq_f32(c, a, b); }
// c - a * b
ARMLLM_INLINE Vf fnma(Vf a, Vf b, Vf c) { return vfmsq_f32(c, a, b); }
inline constexpr bool kFused = true;
ARMLLM_INLINE Vf reciprocal_estimate(Vf a) { return vrecpeq_f32(a); }
ARMLLM_INLINE Vf reciprocal_step(Vf a, Vf y) { return vrecpsq_f32(a, y); }
// FMLA overwrites what it adds to, so a constant kept in a register has to be copied first, which costs as
// much as the FMLA. Loading it anew each time costs nothing where arithmetic is the limit. The assembler
// statement pretends to need `after`, so that the compiler neither moves it out of a loop nor far ahead.
#define ARMLLM_ADDEND(name, x) alignas(16) static const float name[4] = {x, x, x, x}
ARMLLM_INLINE Vf addend(const float (&constant)[4], Vf after) {
  Vf x;
  __asm__("ldr %q0, %1" : "=w"(x) : "m"(constant), "w"(after));
  return x;
}
// 16 bytes at `p` + `offset` (a constant, 0 to 65520 in steps of 16), loaded just here and each time anew,
// where the compiler would load ahead of time or copy registers until none is left. Nothing near may store
// there.
ARMLLM_INLINE int32x4_t reload(const void* p, int offset) {
  int32x4_t x;
  __asm__ volatile("ldr %q0, [%1, %2]" : "=w"(x) : "r"(p), "i"(offset));
  return x;
}
ARMLLM_INLINE Vf max(Vf a, Vf b) { return vmaxq_f32(a, b); }
ARMLLM_INLINE Vf min(Vf a, Vf b) { return vminq_f32(a, b); }
ARMLLM_INLINE Vf exponent(Vf x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 23)); }

ARMLLM_INLINE float reduce_add(Vf x) { return vaddvq_f32(x); }
ARMLLM_INLINE float reduce_max(Vf x) { return vmaxvq_f32(x); }

ARMLLM_INLINE Vf where_less(Vf a, Vf b, Vf x, Vf y) { return vbslq_f32(vcltq_f32(a, b), x, y); }
ARMLLM_INLINE Vf absolute(Vf x) { return vabsq_f32(x); }
ARMLLM_INLINE void store_low_bytes(int8_t* p, Vu x) {
  const uint16x4_t half = vmovn_u32(x);
  const uint32x2_t bytes = vreinterpret_u32_u8(vmovn_u16(vcombine_u16(half, half)));
  vst1_lane_u32(reinterpret_cast<uint32_t*>(p), bytes, 0);
}
ARMLLM_INLINE Vf lane_numbers() {
  static const float kIndex[4] = {0, 1, 2, 3};
  return vld1q_f32(kIndex);
}

ARMLLM_INLINE void load_pairs(const float* p, Vf& even, Vf& odd) {
  const float32x4x2_t x = vld2q_f32(p);
  even = x.val[0];
  odd = x.val[1];
}
ARMLLM_INLINE void store_pairs(float* p, Vf even, Vf odd) {
  const float32x4x2_t x = {{even, odd}};
  vst2q_f32(p, x);
}
ARMLLM_INLINE void load_pairs(const bfloat16* p, Vf& even, Vf& odd) {
  const Vu x = vreinterpretq_u32_u16(vld1q_u16(&p->bits));
  even = vreinterpretq_f32_u32(vshlq_n_u32(x, 16));
  odd = vreinterpretq_f32_u32(vandq_u32(x, vdupq_n_u32(0xffff0000u)));
}
ARMLLM_INLINE void store_pairs(bfloat16* p, Vf even, Vf odd) {
  vst1q_u16(&p->bits, vreinterpretq_u16_u32(vsliq_n_u32(bf16_bits(even), bf16_bits(odd), 16)));
}

ARMLLM_INLINE void load_pairs(const float16* p, Vf& even, Vf& odd) {
  const uint16x4x2_t x = vld2_u16(&p->bits);
  even = vcvt_f32_f16(vreinterpret_f16_u16(x.val[0]));
  odd = vcvt_f32_f16(vreinterpret_f16_u16(x.val[1]));
}
ARMLLM_INLINE void store_pairs(float16* p, Vf even, Vf odd) {
  const uint16x4x2_t x = {{float_to_half(even), float_to_half(odd)}};
  vst2_u16(&p->bits, x);
}

using Quad = float32x4_t;
ARMLLM_INLINE Quad load_quad(const float* p) { return vld1q_f32(p); }
template <int i>
ARMLLM_INLINE Vf fma_lane(Vf a, Quad q, Vf c) {
  return vfmaq_laneq_f32(c, a, q, i);
}

#ifndef ARMLLM_PIECE_ALONE
#include "simd/partial.h"
#include "simd/some.h"
#include "simd/many.h"

// Silu has registers for six vectors, which leave fewer of Neoverse's slots empty; but not for float16, whose
// conversions wait for one of Neoverse-N2's two pipes.
template <class T>
inline constexpr int kManySilu = 6;
template <>
inline constexpr int kManySilu<float16> = kMany;

ARMLLM_MANY(reciprocal_estimate, (const Many<count>& a), (a.v[i]))
ARMLLM_MANY(reciprocal_step, (const Many<count>& a, const Many<count>& y), (a.v[i], y.v[i]))
ARMLLM_MANY(fnma, (const Many<count>& a, const Many<count>& b, const Many<count>& c),
            (a.v[i], b.v[i], c.v[i]))
#include "simd/quotient.h"
#endif
