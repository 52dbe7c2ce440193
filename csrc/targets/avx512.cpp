// The scalar code with vectors of 16 floats, for x86-64 development machines.

#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx512"
#define ARMLLM_LANES 16
#include "targets/target.h"

namespace armllm::avx512 {

#include "simd/scalar.h"
#include "kernels/fma.h"
//
#include "kernels/attention_int8.h"
#include "kernels/matmul_plain.h"

ARMLLM_ALL_ENTRIES

}  // namespace armllm::avx512
