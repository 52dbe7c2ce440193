// The scalar code with vectors of 16 floats, for x86-64 development machines.

#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx512"
#define ARMLLM_LANES 16
#include "targets/target.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

namespace armllm::avx512 {

#include "simd/scalar.h"
#include "kernels/fma.h"

ARMLLM_ELEMENTWISE_ENTRIES(float, f32)
ARMLLM_ELEMENTWISE_ENTRIES(bf16, bf16)
ARMLLM_ATTENTION_ENTRIES(float, f32)
ARMLLM_ATTENTION_ENTRIES(bf16, bf16)

}  // namespace armllm::avx512

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
