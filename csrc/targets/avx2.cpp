// The scalar code with vectors of 8 floats, for x86-64 development machines.

#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx2"
#define ARMLLM_LANES 8
#include "targets/target.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace armllm::avx2 {

#include "simd/scalar.h"
#include "kernels/fma.h"

ARMLLM_ELEMENTWISE_ENTRIES(float, f32)
ARMLLM_ELEMENTWISE_ENTRIES(bf16, bf16)
ARMLLM_ATTENTION_ENTRIES(float, f32)
ARMLLM_ATTENTION_ENTRIES(bf16, bf16)

}  // namespace armllm::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
