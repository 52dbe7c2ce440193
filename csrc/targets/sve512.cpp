// SVE with vectors of a panel's sixteen columns or longer (A64FX): products with floating-point weights in
// panels.

// clang-format off
#define ARMLLM_SECTION "armllm.sve512"
#include "targets/target.h"

// Unless the baseline has it. GCC's intrinsics ask for Armv8.2 beside the feature; clang before 16 needs a flag as
// well, which csrc/CMakeLists.txt gives.
#if !defined(__clang__) && !defined(__ARM_FEATURE_SVE)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+sve")
#define ARMLLM_POP_OPTIONS
#endif
#include <arm_sve.h>
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("sve"))), apply_to = function)
#endif

namespace armllm::sve512 {

#define ARMLLM_SVE_LANES 16
#include "simd/sve.h"
#include "kernels/panels_sve.h"
#include "kernels/entries.h"

ARMLLM_FLOAT_MATMUL_ENTRIES(panel, float, f32, panels)
ARMLLM_FLOAT_MATMUL_ENTRIES(panel, float16, f16, panels)
ARMLLM_FLOAT_MATMUL_ENTRIES(panel, bfloat16, bf16, panels)

}  // namespace armllm::sve512
// clang-format on

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
