// AVX512-BF16 (Cooper Lake, Zen 4 and later): VDPBF16PS for attention on a bfloat16 cache and for products
// with bfloat16 weights in panels. What it does not override is left to avx512.

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own immintrin.h
#endif
#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx512_bf16"
#define ARMLLM_LANES 16
#include "targets/target.h"

namespace armllm::avx512_bf16 {

#include "simd/scalar.h"
#include "kernels/fma.h"
//
#include "kernels/attention_avx512.h"
#include "kernels/panels_avx512.h"

ARMLLM_ATTENTION_ENTRIES(bfloat16, bf16, tiles::kv_cache_layout, tiles::write_kv_cache, tiles::scratch_bytes,
                         tiles::attention_split, tiles::kTileRows)
ARMLLM_FLOAT_MATMUL_ENTRIES(panel, bfloat16, bf16, panels_dot)

}  // namespace armllm::avx512_bf16
