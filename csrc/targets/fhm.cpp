// FEAT_FHM (Neoverse-V1, N2 and later): FMLAL for attention on a binary16 cache.

#include <arm_neon.h>

#define ARMLLM_SECTION "armllm.fhm"
#define ARMLLM_LANES 4
#include "targets/target.h"

// Unless the baseline has it; see bf16.cpp.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("fp16fml"))), apply_to = function)
#elif !defined(__ARM_FEATURE_FP16_FML)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+fp16fml")
#define ARMLLM_POP_OPTIONS
#endif

namespace armllm::fhm {

#include "simd/neon.h"
//
#include "simd/fmlal.h"
//
#include "kernels/fma.h"
//
#include "kernels/attention_fhm.h"

ARMLLM_ATTENTION_ENTRIES(float16, f16, kv_cache_layout<float16>, write_kv_cache<float16>,
                         fmlal::scratch_bytes, fmlal::attention_split, kTileRows)

}  // namespace armllm::fhm

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
