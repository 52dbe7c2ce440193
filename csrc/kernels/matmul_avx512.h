// Quantized products with VPDPBUSD (AVX512-VNNI, matmul_avx512_tiles.h).

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.avx512_vnni"
#endif
#include "simd/primitives.h"

inline constexpr int64_t kRowChunk = 16, kRowsOfPair = 1, kPanelsOfRow = 4, kFewRows = 12, kMaxTileRows = 12;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns16x4;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }

#include "kernels/matmul.h"
#include "kernels/matmul_avx512_tiles.h"

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { vnni_tile<8, kMaxTileRows>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { vnni_tile<4, kMaxTileRows>(p); }

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, no_more_bytes, nothing_more)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 1.0f, w4a8_tile, kNoDecoder, no_more_bytes, nothing_more)
