// AVX512-BF16 (Cooper Lake, Zen 4 and later): VDPBF16PS for attention on a bfloat16 cache and for products
// with bfloat16 weights in panels and adapters, and VCVTNEPS2BF16 for decoding them. What it does not
// override is left to avx512.

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own immintrin.h
#endif
#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx512_bf16"
#define ARMLLM_LANES 16
#include "targets/target.h"

namespace armllm::avx512_bf16 {

#include "simd/scalar.h"
namespace fp8 {
#define ARMLLM_STORE_DECODED
ARMLLM_INLINE void store_decoded(bfloat16* p, Vf x) {
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
  memcpy(p, &rounded, sizeof rounded);
}
}  // namespace fp8
#include "kernels/fma.h"
//
#include "kernels/attention_avx512.h"
#include "kernels/lora_avx512.h"
#include "kernels/panels_avx512.h"

ARMLLM_ATTENTION_ENTRIES(bfloat16, bf16, tiles::kv_cache_layout, tiles::write_kv_cache, tiles::scratch_bytes,
                         tiles::attention_split, tiles::kTileRows)
ARMLLM_FLOAT_MATMUL_ENTRIES(panel, bfloat16, bf16, panels_dot, 0)
ARMLLM_ENTRY void lora_shrink_bf16(const LoraArgs& a, const LoraTile& tile) {
  lora::shrink<bfloat16>(a, tile);
}
ARMLLM_ENTRY void lora_expand_bf16(const LoraArgs& a, const LoraTile& tile) {
  lora::expand<bfloat16>(a, tile);
}
ARMLLM_ENTRY void decode_fp8_bf16(const DecodeFp8Args& a) { fp8::decode<bfloat16>(a); }

}  // namespace armllm::avx512_bf16
