// How packed weights lie in memory. A layout is what kernels read (csrc/kernels/matmul_*.h) and what
// csrc/pack.cpp writes, in plain C++: any machine packs for any other.

#pragma once

#include <stdint.h>

namespace armllm {

// Panels of `columns` columns (of int4 `int4_columns`), one after the other. A panel holds blocks, then its
// scales [groups, columns] in 32 or 16 bits, and with zero points the offsets [groups, columns], floats. A
// block holds `run` elements of each column in order. Of int4 a byte is a low and a high nibble, two's
// complement XORed with `nibbles` (8 in either half is an offset of 8): of a column's 2 * run elements the
// first and the second half, or with `pairs` the elements of two neighboring columns, the second one low.
struct WeightLayout {
  const char* name;
  int64_t columns, int4_columns;
  int64_t run;
  int nibbles;
  int pairs;

  constexpr int64_t columns_of(int bits) const { return bits == 4 ? int4_columns : columns; }
};

inline constexpr WeightLayout kColumns16{"columns16", 16, 16, 2, 0, 0};
inline constexpr WeightLayout kColumnPairs4x4{"columnpairs4x4", 4, 8, 4, 0x08, 4};
inline constexpr WeightLayout kColumns4x8{"columns4x8", 4, 4, 8, 0, 0};
inline constexpr WeightLayout kColumns16x4{"columns16x4", 16, 16, 4, 0, 0};
inline constexpr WeightLayout kColumnPairs4x8{"columnpairs4x8", 4, 4, 8, 0x08, 1};

// The layout that a target's matmul reads.
struct TargetLayout {
  const char* target;
  const WeightLayout* layout;
};
inline constexpr TargetLayout kTargetLayouts[] = {
    {"scalar", &kColumns16},   {"avx2", &kColumns16},          {"avx512", &kColumns16},
    {"neon", &kColumns4x8},    {"dotprod", &kColumnPairs4x4},  {"i8mm", &kColumnPairs4x8},
    {"sve512", &kColumns16x4}, {"avx512_vnni", &kColumns16x4}, {"amx", &kColumns16x4},
};

// Whether a target, by the name of its section (`armllm.<target>`), is listed with this layout.
constexpr bool reads_layout(const char* section, const WeightLayout& layout) {
  for (const TargetLayout& known : kTargetLayouts) {
    const char *a = section + sizeof("armllm.") - 1, *b = known.target;
    while (*a != '\0' && *a == *b) {
      ++a;
      ++b;
    }
    if (*a == *b) return known.layout == &layout;
  }
  return false;
}

// A weight's in_features are padded with zeros to a multiple of this.
inline constexpr int64_t kWeightStep = 32;

}  // namespace armllm
