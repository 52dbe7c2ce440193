// Products with a weight matrix: how it is described, what a product takes, and what a kernel for it offers.

#pragma once

#include <stdint.h>

namespace armllm {

enum class Storage : int { f32, f16, bf16 };
constexpr int64_t bytes_of(Storage storage) { return storage == Storage::f32 ? 4 : 2; }

// What is stored of the integers q of a weight: the integers, or the numbers of 4 bits that they have in a
// table of 16. e2m1: twice the values of OCP's E2M1 (Microscaling Formats 1.0). iq4_nl: ggml's kvalues_iq4nl.
enum class Values : int { integers, e2m1, iq4_nl };
inline constexpr int kTableSize = 16;
inline constexpr int8_t kTables[][kTableSize] = {
    {},
    {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12},
    {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113},
};

// A weight matrix of 4 or 8 bits, w[n, k] = scale[n, k / group_size] * (q[n, k] - zero[n, k / group_size]).
// How it lies in memory belongs to the matmul kernel (armllm/layouts.h).
struct WeightLayout;
struct WeightShape {
  int64_t out_features, in_features;
  int64_t group_size;  // 32, 64 or 128, which divides in_features; 0: one group (channelwise)
  bool zero_points;
  Storage scales = Storage::f32;     // what holds them exactly
  Values values = Values::integers;  // others have 8 bits and no zero points
};
static inline constexpr __attribute__((always_inline)) int64_t weight_groups(const WeightShape& s) {
  return s.group_size == 0 ? 1 : s.in_features / s.group_size;
}
static inline constexpr __attribute__((always_inline)) int64_t scale_bytes(const WeightShape& s) {
  return s.scales == Storage::f32 ? 4 : 2;
}
// In memory, of integers of so many bits.
static inline constexpr __attribute__((always_inline)) int64_t stored_bits(const WeightShape& s, int bits) {
  return s.values == Values::integers ? bits : 4;
}
struct PackWeightArgs {
  void* packed;          // 64 bytes aligned
  const int8_t* q;       // [out_features, in_features]
  const float* scales;   // [out_features, groups], contiguous; shape.scales holds them exactly
  const float* offsets;  // the same shape, added to scale * q: -scale * zero point; or null
  WeightShape shape;
  int64_t q_stride;
};

// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], with x and out of the op's storage type.
//
// matmul_w4a8, matmul_w8a8: x is quantized as by quantize_rows (symmetric), or with a given
// scale: round(x / x_scale) held in [-127, 127]; rows that count as zeros, or are not finite, as before. The
// sum over a group is exact in int32; sums of groups, scales and bias are float.
//
// dense_matmul: w is of the storage type and lies as it is, [out_features, in_features], in panels of rows.
// panel_matmul: of the storage type, [panels, in_features / f, kPanelColumns, f], where f is the kernel's
// `features_together`; filled up with zeros to whole panels and a multiple of 4 in_features. Sums of both are
// float. With float_rows x and out are float, and there is no bias; x may be rounded to the storage type.
inline constexpr int64_t kPanelColumns = 16;
static inline constexpr __attribute__((always_inline)) int64_t panel_elements(int64_t in_features) {
  return (in_features + 3) / 4 * 4 * kPanelColumns;
}
struct MatmulArgs {
  void* out;           // [rows, out_features]
  const void* x;       // [rows, in_features]
  const void* bias;    // [out_features], or null
  const void* weight;  // packed
  void* activations;   // scratch memory, 64 bytes aligned: the quantized x; or x itself, read in place
  WeightShape shape;
  int64_t rows;
  int64_t out_stride, x_stride;
  float x_scale = 0;  // 0: each row's own
  bool float_rows = false;
  void* scratch = nullptr;  // of the thread that multiplies, see scratch_bytes
  // Of a weight in panels of E4M3 (WeightForm::fp8): [out_features, ceil(in_features / group_size)],
  // contiguous. shape.group_size is any multiple of 4 then, or 0: one scale per row.
  const float* fp8_scales = nullptr;
};
// Rows that activations are gathered from: the r-th is row ids[r] of `rows`. For quantized weights int8 and
// scale as quantize_rows makes them, for others the storage type and no scales.
struct GatherArgs {
  const void* rows;     // [all rows, in_features]
  const float* scales;  // [all rows], or null
  const int32_t* ids;   // [rows], as many as MatmulArgs says
  int64_t stride;
};
// Panels of 4 bits become panels of int8 in a thread's scratch memory, so many bytes at a time, or one panel
// where that is more: while tile after tile meets them they are in the second-level cache, and those of a
// single tile in the first-level one.
inline constexpr int64_t kDecodedBytes = 256 * 1024, kDecodedBytesOfTile = 48 * 1024;
inline constexpr int64_t kDecodedRows = 64;  // fewer don't pay for decoding
struct MatmulKernel {
  const WeightLayout* layout;  // null where weights lie as they are
  int64_t panel;               // columns of a panel
  int64_t (*panel_bytes)(const WeightShape&);
  int64_t (*activation_bytes)(const WeightShape&, int64_t rows);
  // Fills `activations` from x. Range: rows.
  void (*quantize)(const MatmulArgs&, int64_t begin, int64_t end);
  // The same from other rows, to the same bits; x is not read. Range: rows.
  void (*gather)(const MatmulArgs&, const GatherArgs&, int64_t begin, int64_t end);
  // Tiles of rows that share what is read of a panel.
  int64_t (*tiles)(const WeightShape&, int64_t rows);
  void (*multiply)(const MatmulArgs&, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                   int64_t panel_end);
  // Bytes of panels that `multiply` decodes for that many rows or more; 0: none.
  int64_t decoded, decoded_rows;
  // Of panel_matmul: how many in_features of a column stand side by side, 1, 2 or 4.
  int64_t features_together = 1;
  int64_t panels_of_row = 1;   // that a single row meets at a time, at most
  int64_t panels_of_tile = 1;  // that a tile of several rows does
  bool takes_rows = false;     // its activations are x itself, where that has no padding

  int64_t decoded_bytes(const WeightShape& s, int64_t rows) const {
    if (s.values != Values::integers) {
      const int64_t one = panel * ((s.in_features + 31) / 32 * 32);
      const int64_t some = tiles(s, rows) == 1 ? kDecodedBytesOfTile : kDecodedBytes;
      return one > some ? one : some;
    }
    return rows < decoded_rows ? 0 : decoded;
  }
  // Of the scales of such panels as floats, where they are stored in 16 bits.
  int64_t widened_bytes(const WeightShape& s) const {
    return s.scales == Storage::f32 ? 0 : (panels_of_row * panel * weight_groups(s) * 4 + 63) / 64 * 64;
  }
  // What a thread that multiplies needs: scales as floats, then decoded panels.
  int64_t scratch_bytes(const WeightShape& s, int64_t rows) const {
    return widened_bytes(s) + decoded_bytes(s, rows);
  }
};
using Matmul = const MatmulKernel;

}  // namespace armllm
