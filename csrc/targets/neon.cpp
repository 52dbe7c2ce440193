// Armv8.0 Advanced SIMD.

#define ARMLLM_SECTION "armllm.neon"
#define ARMLLM_LANES 4
#include <arm_neon.h>

#include "targets/target.h"

namespace armllm::neon {

#include "simd/neon.h"
#include "kernels/fma.h"

ARMLLM_ELEMENTWISE_ENTRIES(float, f32)
ARMLLM_ELEMENTWISE_ENTRIES(bfloat16, bf16)
ARMLLM_FMA_ATTENTION_ENTRIES(float, f32)
ARMLLM_FMA_ATTENTION_ENTRIES(bfloat16, bf16)

}  // namespace armllm::neon
