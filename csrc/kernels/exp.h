// exp(x), within 2.5 units in the last place and 2.8e-9 * |x| of the exact value on [-87.3, 88.3] (checked by
// tests/csrc). Below -87.68 it is 0, above 88.37 infinity; a NaN stays a NaN.
//
// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds x / ln 2 to an
// integer and leaves n + 127, the exponent field of 2^n, in the low bits: neither a rounding nor a conversion
// instruction (both slow on Neoverse) is needed. n = -127 gives 0 and n = 128 infinity without a further
// select. r = x - n * ln 2 is one fused multiply-add: that a float's ln 2 is 1.9e-9 too large is as if x were
// off by a twentieth of its own rounding. Without fused ones ln 2 is split in two (Cody & Waite 1980), the
// first part short enough for exact products. The polynomial is 1 + r + r^2 * q(r), q of degree 3 with the
// least largest relative error (1.05e-7, Remez). V is Vf or Many.

#ifndef ARMLLM_INLINE  // opened alone
#include "simd/neon.h"
#endif

ARMLLM_ADDEND(kExpShift, 0x1.8p23f + 127);
ARMLLM_ADDEND(kExp4, 0x1.5729fp-5f);
ARMLLM_ADDEND(kExp3, 0x1.5557aep-3f);
ARMLLM_ADDEND(kExpMinus3, -0x1.5557aep-3f);
ARMLLM_ADDEND(kExp2, 0x1.fffdfcp-2f);
ARMLLM_ADDEND(kExp1, 1.0f);
ARMLLM_ADDEND(kExpMinus1, -1.0f);

// x becomes p and power 2^n, whose product is exp(sign * x). sign * x in [-88, 89], sign 1 or -1. With -1, r
// and what an odd power of it is multiplied by have the other sign.
template <int sign, class V>
ARMLLM_INLINE void exp_parts(V& x, V& power) {
  power = fma(x, splat(sign * 0x1.715476p+0f), addend(kExpShift, x));
  V p = sub(power, splat(0x1.8p23f + 127));
  V r;
  if constexpr (kFused) {
    r = fma(p, splat(-sign * 0x1.62e430p-1f), x);
  } else {
    r = fma(p, splat(-sign * 0x1.63p-1f), x);
    r = fma(p, splat(sign * 0x1.bd0106p-13f), r);
  }
  p = fma(r, splat(sign * 0x1.106282p-7f), addend(kExp4, r));
  p = fma(p, r, sign > 0 ? addend(kExp3, p) : addend(kExpMinus3, p));
  p = fma(p, r, addend(kExp2, p));
  p = fma(p, r, sign > 0 ? addend(kExp1, p) : addend(kExpMinus1, p));
  x = fma(p, r, addend(kExp1, p));
  power = exponent(power);
}

template <class V>
ARMLLM_INLINE V exp_of_negative(V x) {  // x <= 0, or a NaN
  V power;
  x = max(splat(-88.0f), x);
  exp_parts<1>(x, power);
  return mul(x, power);
}
ARMLLM_INLINE Vf exp(Vf x) { return exp_of_negative(min(splat(89.0f), x)); }
template <class V>
ARMLLM_INLINE V one_plus_exp_of_minus(V x) {
  V power;
  x = min(splat(88.0f), max(splat(-89.0f), x));
  exp_parts<-1>(x, power);
  return fma(x, power, addend(kExp1, x));
}

// 2^(x - base), within 2.5 units in the last place, for x <= base, an integer of at most 2^21 in magnitude; 0
// below base - 126.5; a NaN stays a NaN. base costs nothing: it is part of the number that rounds when it is
// added. r = x - n is exact. The polynomial has the least largest relative error, 9.6e-8.
ARMLLM_ADDEND(kPower4, 0x1.3ceabcp-7f);
ARMLLM_ADDEND(kPower3, 0x1.c6b6fep-5f);
ARMLLM_ADDEND(kPower2, 0x1.ebf9bcp-3f);
ARMLLM_ADDEND(kPower1, 0x1.62e42ap-1f);
template <class V>
ARMLLM_INLINE V power_of_two(V x, float base) {
  const Vf shift = splat((0x1.8p23f - base) + 127);
  x = max(splat(base - 127), x);
  const V power = add(x, shift);
  const V r = sub(x, sub(power, shift));
  V p = fma(r, splat(0x1.5bb9bap-10f), addend(kPower4, r));
  p = fma(p, r, addend(kPower3, p));
  p = fma(p, r, addend(kPower2, p));
  p = fma(p, r, addend(kPower1, p));
  return mul(fma(p, r, addend(kExp1, p)), exponent(power));
}
