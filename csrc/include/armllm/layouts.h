// How packed weights lie in memory. A layout is what kernels read (csrc/kernels/matmul_*.h) and what
// csrc/pack.cpp writes, in plain C++: any machine packs for any other.

#pragma once

#include <stdint.h>

namespace armllm {

// Panels of `columns` columns, one after the other. A panel holds blocks, then its scales [groups, columns],
// and with zero points [groups, columns] of -scale * zero. A block holds `run` elements of each column in
// order, of int4 2 * run: the first half in the low nibbles. Nibbles are two's complement XORed with
// `nibbles`: 0x88 is an offset of 8.
struct WeightLayout {
  const char* name;
  int64_t columns;
  int64_t run;
  int nibbles;
};

inline constexpr WeightLayout kColumns16{"columns16", 16, 2, 0};
inline constexpr WeightLayout kColumns4x4{"columns4x4", 4, 4, 0};
inline constexpr WeightLayout kColumns4x8{"columns4x8", 4, 8, 0};
inline constexpr WeightLayout kColumns4x8Offset{"columns4x8offset", 4, 8, 0x88};

// The layout that a target's matmul reads.
struct TargetLayout {
  const char* target;
  const WeightLayout* layout;
};
inline constexpr TargetLayout kTargetLayouts[] = {
    {"scalar", &kColumns16}, {"avx2", &kColumns16},     {"avx512", &kColumns16},
    {"neon", &kColumns4x8},  {"dotprod", &kColumns4x4}, {"i8mm", &kColumns4x8Offset},
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
