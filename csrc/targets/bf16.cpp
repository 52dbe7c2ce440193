// FEAT_BF16 (Neoverse-V1, N2 and later): BFMMLA for attention on a bfloat16 cache and for experts, BFDOT for
// adapters, BFCVTN for every store of bfloat16. What stores float is left to the NEON target.

#include <arm_neon.h>

#define ARMLLM_SECTION "armllm.bf16"
#define ARMLLM_LANES 4
#define ARMLLM_BFCVT 1
#include "targets/target.h"

// Unless the baseline has it. GCC's intrinsics ask for Armv8.2 beside the feature; clang before 16 needs a
// flag as well, which csrc/CMakeLists.txt gives.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("bf16"))), apply_to = function)
#elif !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+bf16")
#define ARMLLM_POP_OPTIONS
#endif

namespace armllm::bf16 {

#include "simd/neon.h"
#include "kernels/fma.h"
//
#include "kernels/attention_bf16.h"
//
#include "kernels/dense_bf16.h"
#include "kernels/lora_bf16.h"
#include "kernels/panels_bf16.h"

ARMLLM_ELEMENTWISE_ENTRIES(bfloat16, bf16)
ARMLLM_CONVERT_ENTRY(float, f32, bfloat16, bf16)
ARMLLM_CONVERT_ENTRY(float16, f16, bfloat16, bf16)
ARMLLM_ATTENTION_ENTRIES(bfloat16, bf16, kv_cache_layout<bfloat16>, mmla::write_kv_cache, mmla::scratch_bytes,
                         mmla::attention_split, mmla::kTileRows)
ARMLLM_FLOAT_MATMUL_ENTRIES(dense, bfloat16, bf16, DenseBfmmla, 0)
ARMLLM_FLOAT_MATMUL_ENTRIES(panel, bfloat16, bf16, PanelsBfmmla, 0)

}  // namespace armllm::bf16

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
