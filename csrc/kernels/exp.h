// exp(x), within 2.5 units in the last place of the exact value on [-87.3, 88.3] (checked for every float by
// tests/csrc). Below -87.68 it is 0, above 88.37 infinity; a NaN stays a NaN.
//
// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2. Adding 1.5 * 2^23 + 127 rounds x / ln 2 to an
// integer and leaves n + 127, the exponent field of 2^n, in the low bits: neither a rounding nor a conversion
// instruction (both slow on Neoverse) is needed. n = -127 gives 0 and n = 128 infinity without a further
// select. ln 2 is split in two (Cody & Waite 1980), the first part short enough for exact products. The
// polynomial is 1 + r + r^2 * q(r), q of degree 3 with the least largest relative error (1.05e-7, Remez).
//
// N vectors go through each step together: a chain of dependent instructions is too long for an out-of-order
// core to find much beside it.

ARMLLM_ADDEND(kExpShift, 0x1.8p23f + 127);
ARMLLM_ADDEND(kExp4, 0x1.5729fp-5f);
ARMLLM_ADDEND(kExp3, 0x1.5557aep-3f);
ARMLLM_ADDEND(kExpMinus3, -0x1.5557aep-3f);
ARMLLM_ADDEND(kExp2, 0x1.fffdfcp-2f);
ARMLLM_ADDEND(kExp1, 1.0f);
ARMLLM_ADDEND(kExpMinus1, -1.0f);

// x becomes p and power 2^n, whose product is exp(sign * x). sign * x in [-88, 89], sign 1 or -1. With -1, r
// and what an odd power of it is multiplied by have the other sign.
template <int sign, int N>
ARMLLM_INLINE void exp_parts(Vf (&x)[N], Vf (&power)[N]) {
  const Vf shift = splat(0x1.8p23f + 127);
  Vf p[N];
#define ARMLLM_EACH ARMLLM_UNROLL for (int i = 0; i < N; ++i)
  ARMLLM_EACH power[i] = fma(x[i], splat(sign * 0x1.715476p+0f), addend(kExpShift, x[i]));
  ARMLLM_EACH p[i] = sub(power[i], shift);
  ARMLLM_EACH x[i] = fma(p[i], splat(-sign * 0x1.63p-1f), x[i]);
  ARMLLM_EACH x[i] = fma(p[i], splat(sign * 0x1.bd0106p-13f), x[i]);
  ARMLLM_EACH p[i] = fma(splat(sign * 0x1.106282p-7f), x[i], addend(kExp4, x[i]));
  ARMLLM_EACH p[i] = fma(p[i], x[i], sign > 0 ? addend(kExp3, p[i]) : addend(kExpMinus3, p[i]));
  ARMLLM_EACH p[i] = fma(p[i], x[i], addend(kExp2, p[i]));
  ARMLLM_EACH p[i] = fma(p[i], x[i], sign > 0 ? addend(kExp1, p[i]) : addend(kExpMinus1, p[i]));
  ARMLLM_EACH x[i] = fma(p[i], x[i], addend(kExp1, p[i]));
  ARMLLM_EACH power[i] = exponent(power[i]);
#undef ARMLLM_EACH
}

// x <= 0, or a NaN
template <int N>
ARMLLM_INLINE void exp_of_negative(Vf (&x)[N]) {
  Vf power[N];
  ARMLLM_UNROLL for (int i = 0; i < N; ++i)
    x[i] = max(splat(-88.0f), x[i]);
  exp_parts<1>(x, power);
  ARMLLM_UNROLL for (int i = 0; i < N; ++i)
    x[i] = mul(x[i], power[i]);
}
ARMLLM_INLINE Vf exp_of_negative(Vf x) {
  Vf one[1] = {x};
  exp_of_negative(one);
  return one[0];
}
ARMLLM_INLINE Vf exp(Vf x) { return exp_of_negative(min(splat(89.0f), x)); }
ARMLLM_INLINE Vf one_plus_exp_of_minus(Vf x) {
  Vf one[1] = {min(splat(88.0f), max(splat(-89.0f), x))}, power[1];
  exp_parts<-1>(one, power);
  return fma(one[0], power[0], addend(kExp1, one[0]));
}
