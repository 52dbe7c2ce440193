// AMX (Sapphire Rapids and later): TDPBF16PS on tiles of 16 rows for attention on a bfloat16 cache and for
// products with bfloat16 weights and adapters, TDPBSSD for quantized products. What it does not override is
// left to avx512.

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own immintrin.h
#endif
#include <immintrin.h>

#define ARMLLM_SECTION "armllm.amx"
#define ARMLLM_LANES 16
#include "targets/target.h"

namespace armllm::amx {

#include "simd/scalar.h"
#include "kernels/fma.h"
//
#include "kernels/attention_avx512.h"
#include "kernels/dense_amx.h"
#include "kernels/lora_amx.h"
#include "kernels/matmul_amx.h"

ARMLLM_ATTENTION_ENTRIES(bfloat16, bf16, tiles::kv_cache_layout, tiles::write_kv_cache, tiles::scratch_bytes,
                         tiles::attention_split, tiles::kTileRows)
ARMLLM_FLOAT_MATMUL_ENTRIES(dense, bfloat16, bf16, dense_amx, 0)
ARMLLM_ENTRY void lora_shrink_bf16(const LoraArgs& a, const LoraTile& tile) { lora_amx::shrink(a, tile); }
ARMLLM_ENTRY void lora_expand_bf16(const LoraArgs& a, const LoraTile& tile) { lora_amx::expand(a, tile); }

}  // namespace armllm::amx
