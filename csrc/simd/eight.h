// Eight vectors with names, x0 to x7: SVE's can lie in no array.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone
#include "targets/target.h"
#endif

#define ARMLLM_FOUR(x) x##0, x##1, x##2, x##3
#define ARMLLM_EIGHT(x) ARMLLM_FOUR(x), x##4, x##5, x##6, x##7

// NOLINTBEGIN(readability-function-size): the vectors have no array.
template <int i, class V>
ARMLLM_INLINE V& pick_of_eight(ARMLLM_EIGHT(V& a)) {
  if constexpr (i == 0) return a0;
  if constexpr (i == 1) return a1;
  if constexpr (i == 2) return a2;
  if constexpr (i == 3) return a3;
  if constexpr (i == 4) return a4;
  if constexpr (i == 5) return a5;
  if constexpr (i == 6) return a6;
  if constexpr (i == 7) return a7;
}
// NOLINTEND(readability-function-size)
