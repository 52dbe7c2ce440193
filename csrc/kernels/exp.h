// exp(x), within 2.5 units in the last place of the exact value on [-87.3, 88.3] (checked for every float by
// tests/csrc). Below -87.68 it is 0, above 88.37 infinity; a NaN stays a NaN.
//
// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds x / ln 2 to an
// integer and leaves n + 127, the exponent field of 2^n, in the low bits: neither a rounding nor a conversion
// instruction (both slow on Neoverse) is needed. n = -127 gives 0 and n = 128 infinity without a further
// select. ln 2 is split in two (Cody & Waite 1980), the first part short enough for exact products. The
// polynomial is 1 + r + r^2 * q(r), q of degree 3 with the least largest relative error (1.05e-7, Remez).

ARMLLM_INLINE Vf exp_bounded(Vf x) {
  const Vf shift = splat(0x1.8p23f + 127);
  const Vf shifted = fma(x, splat(0x1.715476p+0f), shift);
  const Vf n = sub(shifted, shift);
  Vf r = fma(n, splat(-0x1.63p-1f), x);
  r = fma(n, splat(0x1.bd0106p-13f), r);
  Vf p = fma(splat(0x1.106282p-7f), r, splat(0x1.5729fp-5f));
  p = fma(p, r, splat(0x1.5557aep-3f));
  p = fma(p, r, splat(0x1.fffdfcp-2f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  return mul(p, exponent(shifted));
}

ARMLLM_INLINE Vf exp_of_negative(Vf x) { return exp_bounded(max(splat(-88.0f), x)); }  // x <= 0, or a NaN
ARMLLM_INLINE Vf exp(Vf x) { return exp_of_negative(min(splat(89.0f), x)); }
