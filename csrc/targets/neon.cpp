// Armv8.0 Advanced SIMD.

#define ARMLLM_SECTION "armllm.neon"
#define ARMLLM_LANES 4
#include <arm_neon.h>

#include "targets/target.h"

namespace armllm::neon {

#include "simd/neon.h"
#include "kernels/fma.h"
//
#include "kernels/attention_int8.h"
#include "kernels/matmul_smull.h"

ARMLLM_ALL_ENTRIES

}  // namespace armllm::neon
