// What the kernels with AMX share (Intel SDM volume 1, chapter 18): the shapes of the eight tiles, and masks.
// Included before them, inside the namespace of the target.

#pragma once

#include "kernels/avx512_lanes.h"

// As LDTILECFG reads it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};
ARMLLM_INLINE void load_shapes(const TileShapes& shapes) {
  // GCC 12 doesn't know that LDTILECFG and TILELOADD read memory.
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
}
