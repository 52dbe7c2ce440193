// Quantized products with SMMLA: 8 elements of two columns times 8 elements of two rows.
//
// A byte of int4 holds two columns of the same k, high and low, where low is stored with an offset of 8 and
// high in two's complement: as an integer it is 16 * high + (low + 8). Products are made of the bytes as they
// are and of their low halves, which a mask gives: the second sum belongs to one column, and the first minus
// the second to the other, 16 times too large. Sums start at what takes the offset off again, which is known
// when a row is quantized.

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.i8mm"
#endif
#include "simd/primitives.h"

inline constexpr int64_t kRowChunk = 8, kRowsOfPair = 2, kPanelsOfRow = 4, kFewRows = 1;
inline constexpr int64_t kBlockFeatures = 2048;
inline constexpr int64_t kMaxTileRows = 16;
inline constexpr const WeightLayout& kLayout = kColumnPairs4x8;
// The sums of groups need as many registers as the integers.
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool grouped) { return grouped ? 12 : 16; }

#include "kernels/matmul.h"

// What int4 keeps beside the activations: what the integers of a group start at, [groups, pairs of the tile,
// 4] per tile, in the order of SMMLA's result: two columns, each with two rows. With groups they are floats'
// bits too, of 1.5 * 2^23 plus the sum of products: a subtraction then converts them, in one slot where SCVTF
// takes two. Exact below 2^22: a group of 128 reaches 128 * 127 * 136.
ARMLLM_INLINE int64_t all_starts_bytes(const WeightShape& s, int64_t rows) {
  return round_up(rows, 2) / 2 * weight_groups(s) * 16;
}
// And a single row (x, 0) a second time, as (-x, x).
template <int bits>
ARMLLM_INLINE int64_t starts_bytes(const WeightShape& s, int64_t rows) {
  if (bits == 8) return 0;
  return all_starts_bytes(s, rows) + (rows == 1 ? 2 * padded_features(s) : 0);
}

// Of the two rows of a pair a single row of int4 makes the two halves of a byte: SMMLA of bytes by (x, 0) and
// of low halves by (-x, x) add up to what is 16 times the products of the high halves, and those of the low.
ARMLLM_INLINE void order_single_row(const MatmulArgs& a, const Activations& x) {
  const WeightShape& s = a.shape;
  const int32_t first = s.group_size == 0 ? 0 : kRounderBits;
  int32_t* starts = reinterpret_cast<int32_t*>(x.more);
  int8_t* both = reinterpret_cast<int8_t*>(x.more + all_starts_bytes(s, 1));
  for (int64_t g = 0; g < weight_groups(s); ++g) {
    starts[4 * g] = starts[4 * g + 2] = first;
    starts[4 * g + 1] = starts[4 * g + 3] = first - 8 * static_cast<int32_t>(x.sums[2 * g]);
  }
  for (int64_t k = 0; k < 2 * padded_features(s); k += 16) {
    const int8x8_t row = vld1_s8(x.q + k);
    vst1q_s8(both + k, vcombine_s8(vneg_s8(row), row));
  }
}

template <int bits>
ARMLLM_INLINE void prepare(const MatmulArgs& a, int64_t begin, int64_t end) {
  const WeightShape& s = a.shape;
  const Activations x = Activations::at(a.activations, s, a.rows);
  if (bits == 8) {
    // SDOT wants a single row twice.
    if (a.rows == 1) {
      for (int64_t k = 0; k < padded_features(s); k += 8) memcpy(x.q + 2 * k + 8, x.q + 2 * k, 8);
    }
    return;
  }
  if (a.rows == 1) return order_single_row(a, x);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int32_t first = s.group_size == 0 ? 0 : kRounderBits;
  const int64_t groups = weight_groups(s), stop = end == a.rows ? round_up(end, 2) : end;
  for (int64_t r = begin; r < stop; ++r) {
    const int64_t tile = tiling.tile_of(r), top = tiling.first_row(tile),
                  rows = tiling.first_row(tile + 1) - top;
    const float* sums = x.sums + top * groups + (r - top);
    int32_t* to = reinterpret_cast<int32_t*>(x.more) + top * groups * 2 + (r - top) / 2 * 4 + r % 2;
    for (int64_t g = 0; g < groups; ++g) {
      to[0] = to[2] = first - 8 * static_cast<int32_t>(sums[g * rows]);
      to += rows * 2;
    }
  }
}

// Constants that are loaded where they are used: the tiles leave no register for them.
alignas(16) static const int32_t kRounders[4] = {kRounderBits, kRounderBits, kRounderBits, kRounderBits};

// A pair's 8 elements at `x` + `offset` by those of four columns. The largest tiles leave a single register
// for activations, while compilers load many of them ahead, as if the core could not, and then spill sums.
template <bool crowded>
ARMLLM_INLINE void load_and_multiply(int32x4_t (&sums)[2], int8x16_t left, int8x16_t right, const int8_t* x,
                                     int offset) {
  int8x16_t row;
  if constexpr (crowded) {
    __asm__ volatile("ldr %q0, [%5, %6]\n\tsmmla %1.4s, %3.16b, %0.16b\n\tsmmla %2.4s, %4.16b, %0.16b"
                     : "=&w"(row), "+w"(sums[0]), "+w"(sums[1])
                     : "w"(left), "w"(right), "r"(x), "i"(offset));
  } else {
    row = vld1q_s8(x + offset);
    sums[0] = vmmlaq_s32(sums[0], left, row);
    sums[1] = vmmlaq_s32(sums[1], right, row);
  }
}

// 16 elements of four columns and of `pairs` pairs of rows.
template <int bits, int pairs>
ARMLLM_INLINE void add_products(int32x4_t (&sums)[pairs][2], const uint8_t*& w, const int8_t*& x) {
  constexpr bool kCrowded = pairs > 4;
  ARMLLM_UNROLL for (int k = 0; k < 2; ++k) {
    const int8_t* p = reinterpret_cast<const int8_t*>(w);
    const int8x16_t left = vld1q_s8(p);
    const int8x16_t right = bits == 8 ? vld1q_s8(p + 16) : vandq_s8(left, vdupq_n_s8(15));
    w += 4 * bits;
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
      load_and_multiply<kCrowded>(sums[r], left, right, x, 16 * (k * pairs + r));
  }
  x += 32 * pairs;
}

// The two sums of a pair of rows hold columns 0, 1 and 2, 3, with int4 0, 2 and 1, 3.
template <int bits>
ARMLLM_INLINE void spread(float32x4_t scales, float32x4_t& left, float32x4_t& right) {
  left = bits == 8 ? vzip1q_f32(scales, scales) : vtrn1q_f32(scales, scales);
  right = bits == 8 ? vzip2q_f32(scales, scales) : vtrn2q_f32(scales, scales);
}
// With int4 the right one, of low halves, becomes 16 times too large as the left one is.
template <int bits>
ARMLLM_INLINE void store_pair(float* out, float32x4_t left, float32x4_t right) {
  if (bits == 4) right = vmulq_n_f32(right, 16.0f);
  vst1q_f32(out, bits == 8 ? vuzp1q_f32(left, right) : vtrn1q_f32(left, right));
  vst1q_f32(out + 4, bits == 8 ? vuzp2q_f32(left, right) : vtrn2q_f32(left, right));
}

template <int bits, int pairs>
ARMLLM_INLINE void channel_tile(const Product& p) {
  const uint8_t* w = p.weights + p.begin * bits / 2;
  const int8_t* x = p.q + p.begin * 2 * pairs;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more) + p.first_row * 2;
  int32_t* const waiting = reinterpret_cast<int32_t*>(p.waiting);
  int32x4_t sums[pairs][2];
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    if (p.begin != 0) {
      sums[r][0] = vld1q_s32(waiting + 8 * r);
      sums[r][1] = vld1q_s32(waiting + 8 * r + 4);
    } else {
      sums[r][0] = sums[r][1] = bits == 4 ? vld1q_s32(starts + 4 * r) : vdupq_n_s32(0);
    }
  }
  for (int64_t k = p.begin; k < p.end; k += 16) {
    ARMLLM_LOOP("channel", 2 * pairs * 1000 + 16);
    add_products<bits, pairs>(sums, w, x);
  }
  if (p.end < p.features) {
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      vst1q_s32(waiting + 8 * r, sums[r][0]);
      vst1q_s32(waiting + 8 * r + 4, sums[r][1]);
    }
    return;
  }
  float32x4_t left, right;
  spread<bits>(vld1q_f32(p.scales), left, right);
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    const int32x4_t first = bits == 8 ? sums[r][0] : vsubq_s32(sums[r][0], sums[r][1]);
    store_pair<bits>(p.out + 8 * r, vmulq_f32(vcvtq_f32_s32(first), left),
                     vmulq_f32(vcvtq_f32_s32(sums[r][1]), right));
  }
}

template <int bits, int pairs, int length>
ARMLLM_INLINE void grouped_tile(const Product& p) {
  const uint8_t* w = p.weights + p.begin * bits / 2;
  const int8_t* x = p.q + p.begin * 2 * pairs;
  const int64_t first_group = p.begin / length, last_group = p.end / length;
  const int32_t* starts =
      reinterpret_cast<const int32_t*>(p.more) + p.first_row * p.groups * 2 + first_group * 4 * pairs;
  float32x4_t out[pairs][2];
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    out[r][0] = p.begin != 0 ? vld1q_f32(p.waiting + 8 * r) : vdupq_n_f32(0);
    out[r][1] = p.begin != 0 ? vld1q_f32(p.waiting + 8 * r + 4) : vdupq_n_f32(0);
  }
  for (int64_t g = first_group; g < last_group; ++g) {
    ARMLLM_LOOP("group", 2 * pairs * 1000 + length);
    int32x4_t sums[pairs][2];
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      const void* start = bits == 4 ? starts + 4 * r : kRounders;
      sums[r][0] = reload(start, 0);
      sums[r][1] = reload(start, 0);
    }
    starts += 4 * pairs;
    ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
      add_products<bits, pairs>(sums, w, x);
    const float32x4_t rounder =
        pairs > 4 ? vreinterpretq_f32_s32(reload(kRounders, 0)) : vdupq_n_f32(kRounder);
    float32x4_t left, right;
    spread<bits>(vld1q_f32(p.scales + 4 * g), left, right);
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      const float32x4_t first = vreinterpretq_f32_s32(sums[r][0]), second = vreinterpretq_f32_s32(sums[r][1]);
      out[r][0] = vfmaq_f32(out[r][0], vsubq_f32(first, bits == 8 ? rounder : second), left);
      out[r][1] = vfmaq_f32(out[r][1], vsubq_f32(second, rounder), right);
    }
  }
  if (p.end < p.features) {
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      vst1q_f32(p.waiting + 8 * r, out[r][0]);
      vst1q_f32(p.waiting + 8 * r + 4, out[r][1]);
    }
    return;
  }
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
    store_pair<bits>(p.out + 8 * r, out[r][0], out[r][1]);
}
