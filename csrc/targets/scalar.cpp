// Plain C++, one element at a time: what every CPU runs.

#define ARMLLM_SECTION "armllm.scalar"
#define ARMLLM_LANES 1
#include "targets/target.h"

namespace armllm::scalar {

#include "simd/scalar.h"
#include "kernels/fma.h"
//
#include "kernels/attention_int8.h"
#include "kernels/matmul_plain.h"

ARMLLM_ALL_ENTRIES

}  // namespace armllm::scalar
