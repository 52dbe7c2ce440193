// exp(x) with FEXPA, which makes 2^(n + i / 64) of the integers n and i (Arm ARM, FEXPA): within 2.5 units in
// the last place and 2.8e-9 * |x| (exp.h says why) on [-87.3, 88.7]. Below -88.03 it is 0, between there and
// -87.33 off by less than 1e-38, above 88.73 infinity; a NaN stays a NaN.
//
// Adding 1.5 * 2^17 + 127 rounds x / ln 2 to 64ths and leaves (n + 127) * 64 + i in the low bits. The rest r
// is at most ln 2 / 128, for which 1 + r + r^2 / 2 is off by 2.7e-8. The bounds of x are -127 ln 2, where n =
// -127 and i = 0 give 0, and 128 ln 2, where n = 128 and i = 0 give infinity.

#ifndef ARMLLM_INLINE  // opened alone
#include "simd/sve.h"
#endif

inline constexpr float kLowest = -0x1.601e68p+6f, kHighest = 0x1.62e430p+6f, kExpShift = 0x1.803f8p17f;

ARMLLM_INLINE Vf exp_of_negative(Vf x) {  // x <= 128 ln 2, or a NaN
  x = max(splat(kLowest), x);
  const Vf shifted = fma(x, splat(0x1.715476p+0f), splat(kExpShift)), one = splat(1.0f);
  const Vf n = sub(shifted, splat(kExpShift));
  const Vf r = fma(n, splat(-0x1.62e430p-1f), x);
  return mul(fma(fma(splat(0.5f), r, one), r, one), svexpa_f32(svreinterpret_u32_f32(shifted)));
}
ARMLLM_INLINE Vf exp(Vf x) { return exp_of_negative(min(splat(kHighest), x)); }
// r is that of -x with the other sign.
ARMLLM_INLINE Vf one_plus_exp_of_minus(Vf x) {
  x = min(splat(-kLowest), max(splat(-kHighest), x));
  const Vf shifted = fma(x, splat(-0x1.715476p+0f), splat(kExpShift)), one = splat(1.0f);
  const Vf n = sub(shifted, splat(kExpShift));
  const Vf r = fma(n, splat(0x1.62e430p-1f), x);
  const Vf p = fma(fma(splat(0.5f), r, splat(-1.0f)), r, one);
  return fma(p, svexpa_f32(svreinterpret_u32_f32(shifted)), one);
}

// 2^(x - base), within 2.5 units in the last place, for x <= base, an integer of at most 2^21 in magnitude; 0
// below base - 127; a NaN stays a NaN. As in exp.h, but for the table of 64ths: the rest is at most 1 / 128,
// for which 1 + r ln 2 + (r ln 2)^2 / 2 is off by 2.7e-8.
ARMLLM_INLINE Vf power_of_two(Vf x, float base) {
  const Vf shift = splat((0x1.8p17f - base) + 127);
  x = max(splat(base - 127), x);
  const Vf shifted = add(x, shift), r = sub(x, sub(shifted, shift));
  const Vf p = fma(fma(splat(0x1.ebfbe0p-3f), r, splat(0x1.62e430p-1f)), r, splat(1.0f));
  return mul(p, svexpa_f32(svreinterpret_u32_f32(shifted)));
}
