// AVX512-VNNI (Cascade Lake, Zen 4 and later): VPDPBUSD for quantized products. What it does not override is
// left to avx512.

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own immintrin.h
#endif
#include <immintrin.h>

#define ARMLLM_SECTION "armllm.avx512_vnni"
#define ARMLLM_LANES 16
#include "targets/target.h"

namespace armllm::avx512_vnni {

#include "simd/scalar.h"
#include "kernels/matmul_avx512.h"

}  // namespace armllm::avx512_vnni
