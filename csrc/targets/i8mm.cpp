// FEAT_I8MM (Neoverse-V1, N2 and later): SMMLA for quantized products, SDOT for a single row of int8;
// SMMLA for attention on an int8 cache.

#include <arm_neon.h>

#define ARMLLM_SECTION "armllm.i8mm"
#define ARMLLM_LANES 4
#define ARMLLM_INT8_SMMLA
#include "targets/target.h"

// Unless the baseline has it; see bf16.cpp.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#elif !defined(__ARM_FEATURE_DOTPROD) || !defined(__ARM_FEATURE_MATMUL_INT8)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#define ARMLLM_POP_OPTIONS
#endif

namespace armllm::i8mm {

// clang-format off
#include "simd/neon.h"
#include "kernels/exp.h"
#include "kernels/attention_int8.h"
#include "kernels/entries.h"
#include "kernels/matmul_smmla.h"
// clang-format on

ARMLLM_INT8_ATTENTION_ENTRIES

}  // namespace armllm::i8mm

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
