// What the kernels with AMX and those with VDPBF16PS share. Included inside the namespace of the target.

#pragma once

#include "simd/primitives.h"

inline constexpr int64_t kBlock = 16;  // columns of a vector, and rows of a tile of AMX

ARMLLM_INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1);
}

template <int N>
struct Number {
  static constexpr int value = N;
};
