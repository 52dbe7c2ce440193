// FEAT_DotProd (Neoverse-N1 and later): SDOT for quantized products and attention on an int8 cache.

#include <arm_neon.h>

#define ARMLLM_SECTION "armllm.dotprod"
#define ARMLLM_LANES 4
#define ARMLLM_INT8_SDOT
#include "targets/target.h"

// Unless the baseline has it; see bf16.cpp.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#elif !defined(__ARM_FEATURE_DOTPROD)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#define ARMLLM_POP_OPTIONS
#endif

namespace armllm::dotprod {

// clang-format off
#include "simd/neon.h"
#include "kernels/exp.h"
#include "kernels/attention_int8.h"
#include "kernels/entries.h"
#include "kernels/matmul_sdot.h"
// clang-format on

ARMLLM_INT8_ATTENTION_ENTRIES

}  // namespace armllm::dotprod

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
