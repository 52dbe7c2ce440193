// SVE with vectors of a panel's sixteen columns or longer (A64FX): quantized products with SDOT, and products
// with floating-point weights. SVE is no more than a tile needs: rows are quantized by Advanced SIMD.

// clang-format off
#include <arm_neon.h>

#define ARMLLM_SECTION "armllm.sve512"
#define ARMLLM_LANES 4
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

#include "simd/neon.h"
#include "kernels/matmul_sve.h"

// A panel of floating-point weights has sixteen columns.
namespace sixteen {
#define ARMLLM_SVE_LANES 16
#undef ARMLLM_ADDEND
#include "simd/sve.h"
#include "kernels/dense_sve.h"
#include "kernels/panels_sve.h"
}  // namespace sixteen
#include "kernels/entries.h"

#define ARMLLM_SVE_MATMUL_ENTRIES(T, suffix)                    \
  ARMLLM_FLOAT_MATMUL_ENTRIES(dense, T, suffix, sixteen::dense, 0) \
  ARMLLM_FLOAT_MATMUL_ENTRIES(panel, T, suffix, sixteen::panels, 0)
ARMLLM_SVE_MATMUL_ENTRIES(float, f32)
ARMLLM_SVE_MATMUL_ENTRIES(float16, f16)
ARMLLM_SVE_MATMUL_ENTRIES(bfloat16, bf16)

}  // namespace armllm::sve512
// clang-format on

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
