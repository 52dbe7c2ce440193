// Quantized products with SVE's SDOT: a vector has four elements of each of a panel's sixteen columns, and
// LD1RW puts four elements of a row beside every column. SDOT by element would run on one of A64FX's two
// pipes. Longer vectors leave lanes unused, shorter ones take a panel in parts, which is not fast. What is
// not the tile itself is Advanced SIMD.

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.sve512"
#include <arm_sve.h>
#endif
#include "simd/primitives.h"
#include "simd/eight.h"

inline constexpr int64_t kRowChunk = 4, kRowsOfPair = 1, kPanelsOfRow = 8, kFewRows = 1, kMaxTileRows = 8;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns16x4;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }

// Sixteen scales of 16 bits as floats.
#define ARMLLM_WIDEN_SIXTEEN
ARMLLM_INLINE void widen_sixteen(const bfloat16* from, float* to) {
  for (int64_t i = 0; i < 16; i += static_cast<int64_t>(svcntw())) {
    const svbool_t lanes = svwhilelt_b32_s64(i, 16);
    svst1_u32(lanes, reinterpret_cast<uint32_t*>(to + i),
              svlsl_n_u32_x(svptrue_b32(), svld1uh_u32(lanes, &from[i].bits), 16));
  }
}
ARMLLM_INLINE void widen_sixteen(const float16* from, float* to) {
  for (int64_t i = 0; i < 16; i += static_cast<int64_t>(svcntw())) {
    const svbool_t lanes = svwhilelt_b32_s64(i, 16);
    svst1_f32(lanes, to + i,
              svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(svld1uh_u32(lanes, &from[i].bits))));
  }
}

// See matmul.h; `step` bytes at a time, no more than a vector has.
#define ARMLLM_LOOK_UP
template <int step>
ARMLLM_INLINE void look_up_by(const int8_t* table, const uint8_t* panel, int64_t bytes, uint8_t* to) {
  const svuint8_t all = svreinterpret_u8_s8(svld1rq_s8(svptrue_b8(), table));
  const svbool_t lanes = svwhilelt_b8_s64(0, step), every = svptrue_b8();
  svuint8_t low = svdup_n_u8(15);
  // As an immediate AND has one of A64FX's pipes.
  __asm__("" : "+w"(low));
  for (int64_t k = 0; k < bytes; k += 64, panel += 32, to += 64) {
    if constexpr (step == 32) {
      ARMLLM_LOOP("look_up", 16);
    }
    ARMLLM_UNROLL for (int i = 0; i < 32; i += step) {
      const svuint8_t both = svld1_u8(lanes, panel + i);
      svst1_u8(lanes, to + i, svtbl_u8(all, svand_u8_x(every, both, low)));
      svst1_u8(lanes, to + 32 + i, svtbl_u8(all, svlsr_n_u8_x(every, both, 4)));
    }
  }
}
ARMLLM_INLINE void look_up(const int8_t* table, const uint8_t* panel, int64_t bytes, uint8_t* to) {
  if (svcntb() < 32) return look_up_by<16>(table, panel, bytes, to);
  look_up_by<32>(table, panel, bytes, to);
}

#include "kernels/matmul.h"

using Ints = svint32_t;
using Floats = svfloat32_t;

// Each product has so many of the eight sums, so that SDOT need not wait for itself: nine cycles on A64FX.
constexpr ARMLLM_INLINE int parts_of(int products) {
  return products > 4 ? 1 : products > 2 ? 2 : products > 1 ? 4 : 8;
}

// NOLINTBEGIN(readability-function-size): the sums have no array.
// Four elements of panel `p` and of each row.
template <int rows, int panels, int p, int four, int r = 0>
ARMLLM_INLINE void add_rows(svint8_t w, const int8_t* x, ARMLLM_EIGHT(Ints& s)) {
  if constexpr (r < rows) {
    constexpr int kParts = parts_of(rows * panels);
    int32_t elements;
    memcpy(&elements, x + 4 * (four * rows + r), sizeof elements);
    Ints& sum = pick_of_eight<(p * rows + r) * kParts + four % kParts>(ARMLLM_EIGHT(s));
    sum = svdot_s32(sum, w, svreinterpret_s8_s32(svdup_n_s32(elements)));
    add_rows<rows, panels, p, four, r + 1>(w, x, ARMLLM_EIGHT(s));
  }
}

// Vector `i` of each panel.
template <int bits, int rows, int panels, int i, int p = 0>
ARMLLM_INLINE void add_panels(svbool_t bytes, svint8_t high, const uint8_t* w, int64_t size, const int8_t* x,
                              ARMLLM_EIGHT(Ints& s)) {
  if constexpr (p < panels) {
    const svint8_t weights = svld1_s8(bytes, reinterpret_cast<const int8_t*>(w) + p * size + 64 * i);
    if constexpr (bits == 8) {
      add_rows<rows, panels, p, i>(weights, x, ARMLLM_EIGHT(s));
    } else {
      const svbool_t all = svptrue_b8();
      add_rows<rows, panels, p, 2 * i>(svlsl_n_s8_x(all, weights, 4), x, ARMLLM_EIGHT(s));
      add_rows<rows, panels, p, 2 * i + 1>(svand_s8_x(all, weights, high), x, ARMLLM_EIGHT(s));
    }
    add_panels<bits, rows, panels, i, p + 1>(bytes, high, w, size, x, ARMLLM_EIGHT(s));
  }
}

// 32 elements of each panel and row.
template <int bits, int rows, int panels, int i = 0>
ARMLLM_INLINE void add_step(svbool_t bytes, svint8_t high, const uint8_t* w, int64_t size, const int8_t* x,
                            ARMLLM_EIGHT(Ints& s)) {
  if constexpr (i < bits) {
    add_panels<bits, rows, panels, i>(bytes, high, w, size, x, ARMLLM_EIGHT(s));
    add_step<bits, rows, panels, i + 1>(bytes, high, w, size, x, ARMLLM_EIGHT(s));
  }
}

template <int first, int parts>
ARMLLM_INLINE Ints whole_sum(ARMLLM_EIGHT(Ints& s)) {
  if constexpr (parts == 1) {
    return pick_of_eight<first>(ARMLLM_EIGHT(s));
  } else {
    return svadd_s32_x(svptrue_b32(), whole_sum<first, parts / 2>(ARMLLM_EIGHT(s)),
                       whole_sum<first + parts / 2, parts / 2>(ARMLLM_EIGHT(s)));
  }
}

// A group's sums times its scales. `scales`: those of the first panel.
template <int rows, int panels, int i = 0>
ARMLLM_INLINE void add_group(svbool_t lanes, const float* scales, int64_t stride, ARMLLM_EIGHT(Ints& s),
                             ARMLLM_EIGHT(Floats& o)) {
  if constexpr (i < rows * panels) {
    constexpr int kParts = parts_of(rows * panels);
    const svbool_t all = svptrue_b32();
    const Floats sum = svcvt_f32_s32_x(all, whole_sum<i * kParts, kParts>(ARMLLM_EIGHT(s)));
    Floats& out = pick_of_eight<i>(ARMLLM_EIGHT(o));
    out = svmla_f32_x(all, out, sum, svld1_f32(lanes, scales + i / rows * stride));
    add_group<rows, panels, i + 1>(lanes, scales, stride, ARMLLM_EIGHT(s), ARMLLM_EIGHT(o));
  }
}

// A group's zero points: as add_zero_points, which would wait for each FMLA.
template <int rows, int panels, int i = 0>
ARMLLM_INLINE void add_zeros(svbool_t lanes, const float* zeros, int64_t stride, const float* sums, float one,
                             ARMLLM_EIGHT(Floats& o)) {
  if constexpr (i < rows * panels) {
    Floats& out = pick_of_eight<i>(ARMLLM_EIGHT(o));
    out = svmla_f32_x(svptrue_b32(), out, svld1_f32(lanes, zeros + i / rows * stride),
                      svdup_n_f32(sums[i % rows] * one));
    add_zeros<rows, panels, i + 1>(lanes, zeros, stride, sums, one, ARMLLM_EIGHT(o));
  }
}

template <int i, int n>
ARMLLM_INLINE void store_sums(svbool_t lanes, float* out, ARMLLM_EIGHT(Floats& o)) {
  if constexpr (i < n) {
    svst1_f32(lanes, out + i * 16, pick_of_eight<i>(ARMLLM_EIGHT(o)));
    store_sums<i + 1, n>(lanes, out, ARMLLM_EIGHT(o));
  }
}
// NOLINTEND(readability-function-size)

// `short_groups`: of 32. Columns `first` and on of each panel.
template <int bits, int rows, int panels, bool short_groups>
ARMLLM_INLINE void sum_columns(const Product& p, int64_t first) {
  const svbool_t bytes = svwhilelt_b8_s64(4 * first, 64), lanes = svwhilelt_b32_s64(first, 16);
  svint8_t high = svdup_n_s8(-16);
  // As an immediate AND has one of A64FX's pipes.
  __asm__("" : "+w"(high));
  const uint8_t* w = p.weights + 4 * first;
  const int8_t* x = p.q;
  Floats o0 = svdup_n_f32(0), o1 = o0, o2 = o0, o3 = o0, o4 = o0, o5 = o0, o6 = o0, o7 = o0;
  for (int64_t g = 0; g < p.groups; ++g) {
    Ints s0 = svdup_n_s32(0), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
    const auto add_32 = [&]() ARMLLM_LAMBDA {
      add_step<bits, rows, panels>(bytes, high, w, p.panel_bytes, x, ARMLLM_EIGHT(s));
      w += static_cast<ptrdiff_t>(64 * bits);
      x += static_cast<ptrdiff_t>(32 * rows);
    };
    if constexpr (short_groups) {
      if constexpr (panels == 2) {
        ARMLLM_LOOP("group_of_two", rows * 1000 + 32);
      }
      if constexpr (panels != 2) {
        ARMLLM_LOOP("group", rows * 1000 + 32);
      }
      add_32();
    } else {
      for (int64_t k = 0; k < p.group; k += 32) {
        ARMLLM_LOOP("channel", rows * 1000 + 32);
        add_32();
      }
    }
    add_group<rows, panels>(lanes, p.scales + g * 16 + first, p.scale_stride, ARMLLM_EIGHT(s),
                            ARMLLM_EIGHT(o));
  }
  for (int64_t g = 0; p.zeros != nullptr && g < p.groups; ++g) {
    add_zeros<rows, panels>(lanes, p.zeros + g * 16 + first, p.panel_bytes / 4, p.sums + g * rows,
                            bits == 4 ? 16.0f : 1.0f, ARMLLM_EIGHT(o));
  }
  store_sums<0, rows * panels>(lanes, p.out + first, ARMLLM_EIGHT(o));
}

template <int bits, int rows, int panels = 1>
ARMLLM_INLINE void tile_of(const Product& p) {
  for (int64_t first = 0; first < 16; first += static_cast<int64_t>(svcntw())) {
    if (p.group == 32) {
      sum_columns<bits, rows, panels, true>(p, first);
    } else {
      sum_columns<bits, rows, panels, false>(p, first);
    }
  }
}

// Panels by `count`, then by fewer.
template <int bits, int count>
ARMLLM_INLINE void row_tile(Product p) {
  for (; p.panels >= count; p.panels -= count) {
    tile_of<bits, 1, count>(p);
    p.weights += count * p.panel_bytes;
    p.scales = of_panel(p.scales, p, count);
    if (p.zeros != nullptr) p.zeros += count * (p.panel_bytes / 4);
    p.out += static_cast<ptrdiff_t>(16 * count);
  }
  if constexpr (count > 1) {
    if (p.panels > 0) row_tile<bits, count / 2>(p);
  }
}

template <int bits>
ARMLLM_INLINE void any_tile(const Product& p) {
  switch (p.rows) {
    case 1:
      return row_tile<bits, kPanelsOfRow>(p);
    case 2:
      return tile_of<bits, 2>(p);
    case 3:
      return tile_of<bits, 3>(p);
    case 4:
      return tile_of<bits, 4>(p);
    case 5:
      return tile_of<bits, 5>(p);
    case 6:
      return tile_of<bits, 6>(p);
    case 7:
      return tile_of<bits, 7>(p);
    default:
      return tile_of<bits, 8>(p);
  }
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { any_tile<8>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { any_tile<4>(p); }

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, no_more_bytes, nothing_more)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile, kNoDecoder, no_more_bytes, nothing_more)
