// SVE of any vector length: norms, rotary embedding, activations, conversions and attention, with FEXPA for
// exponentials. The table asks for vectors longer than Advanced SIMD's: with as many bits per cycle NEON
// needs no predicates.

// clang-format off
#define ARMLLM_SECTION "armllm.sve"
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

namespace armllm::sve {

#include "simd/sve.h"
#include "kernels/exp_sve.h"
#include "kernels/norm.h"
#include "kernels/rotary.h"
#include "kernels/activation.h"
#include "kernels/weighted_sum.h"
#include "kernels/sampling.h"
#include "kernels/lora.h"
#include "kernels/fp8.h"
#include "kernels/entries.h"

// A panel of keys has sixteen, and a state's columns lie by sixteen.
namespace sixteen {
#define ARMLLM_SVE_LANES 16
#undef ARMLLM_ADDEND
#include "simd/sve.h"
#include "kernels/exp_sve.h"
#include "kernels/attention.h"
#include "kernels/recurrence.h"
}  // namespace sixteen
using sixteen::attention_finish;
using sixteen::attention_merge;
namespace recurrence = sixteen::recurrence;

ARMLLM_ELEMENTWISE_ENTRIES(float, f32)
ARMLLM_ELEMENTWISE_ENTRIES(float16, f16)
ARMLLM_ELEMENTWISE_ENTRIES(bfloat16, bf16)
ARMLLM_CONVERT_ENTRIES
ARMLLM_SAMPLING_ENTRIES

#define ARMLLM_SVE_ATTENTION_ENTRIES(T, suffix)                                                        \
  ARMLLM_ATTENTION_ENTRIES(T, suffix, sixteen::kv_cache_layout<T>, sixteen::write_kv_cache<T>,         \
                           sixteen::attention_scratch_bytes, sixteen::attention_split<T>, sixteen::kTileRows)
ARMLLM_SVE_ATTENTION_ENTRIES(float, f32)
ARMLLM_SVE_ATTENTION_ENTRIES(float16, f16)
ARMLLM_SVE_ATTENTION_ENTRIES(bfloat16, bf16)

}  // namespace armllm::sve
// clang-format on

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(ARMLLM_POP_OPTIONS)
#pragma GCC pop_options
#endif
