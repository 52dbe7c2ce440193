// Plain C++, one element at a time: what every CPU runs.

#define ARMLLM_SECTION "armllm.scalar"
#define ARMLLM_LANES 1
#include "targets/target.h"

namespace armllm::scalar {

#include "simd/scalar.h"
#include "kernels/fma.h"

ARMLLM_ELEMENTWISE_ENTRIES(float, f32)
ARMLLM_ELEMENTWISE_ENTRIES(bfloat16, bf16)
ARMLLM_FMA_ATTENTION_ENTRIES(float, f32)
ARMLLM_FMA_ATTENTION_ENTRIES(bfloat16, bf16)

}  // namespace armllm::scalar
