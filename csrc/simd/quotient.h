// a / b for b >= 1, off by at most three roundings. FDIV keeps one or two of the pipes busy for several
// cycles: two steps of Newton's method from an estimate of eight bits cost less. 0 where b is infinite.
template <class A, class V>
ARMLLM_INLINE V quotient(A a, V b) {
  V y = reciprocal_estimate(b);
  y = mul(y, reciprocal_step(b, y));
  return mul(mul(y, a), reciprocal_step(b, y));
}
