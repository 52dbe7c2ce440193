// a / b for b >= 1, off by at most three and a half roundings; 0 where b is infinite. FDIV keeps one or two
// of the pipes busy for several cycles. An estimate y of eight bits and one step that leaves the third power
// of its error cost less: with b y = 1 - e, 1 / b is y (1 + e + e^2), where s = 1 + e is what FRECPS gives, 2
// at infinity, and 1 + e + e^2 = 1 - (s - s^2). e is at most 2^-8.4, its third power 2^-25.3.
#include "targets/target.h"

template <class V>
ARMLLM_INLINE V quotient(V a, V b) {
  const V y = reciprocal_estimate(b), s = reciprocal_step(b, y), x = mul(y, a);
  return fnma(x, fnma(s, s, s), x);
}
template <class V>
ARMLLM_INLINE V reciprocal(V b) {
  const V y = reciprocal_estimate(b), s = reciprocal_step(b, y);
  return fnma(y, fnma(s, s, s), y);
}
