// Sums of floating-point products in SVE: sixteen vectors with names, a0 to a7 and b0 to b7. A tile has rows
// by `count` of them, row after row.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_SVE_LANES 16
#include "simd/sve.h"
#endif
#include "simd/eight.h"

// NOLINTBEGIN(readability-function-size): the sums have no array.
template <int i>
ARMLLM_INLINE Vf& pick(ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (i < 8) {
    return pick_of_eight<i>(ARMLLM_EIGHT(a));
  } else {
    return pick_of_eight<i - 8>(ARMLLM_EIGHT(b));
  }
}

// A vector of weights, the `p`-th of `count`, times a vector of each row.
template <int p, int rows, int count>
ARMLLM_INLINE void add_element(Vf w, ARMLLM_FOUR(Vf x), ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  Vf& sum = pick<p>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  sum = fma(w, x0, sum);
  if constexpr (rows > 1) {
    Vf& second = pick<count + p>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
    second = fma(w, x1, second);
  }
  if constexpr (rows > 2) {
    Vf& third = pick<2 * count + p>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
    third = fma(w, x2, third);
  }
  if constexpr (rows > 3) {
    Vf& fourth = pick<3 * count + p>(ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
    fourth = fma(w, x3, fourth);
  }
}
// NOLINTEND(readability-function-size)
