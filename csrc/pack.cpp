// Packs weights in any layout, for this machine's kernels or another's.

#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "ranges.h"

namespace armllm {

namespace {

int64_t padded_features(const WeightShape& s) { return ceil_div(s.in_features, kWeightStep) * kWeightStep; }
int64_t group_count(const WeightShape& s) { return s.group_size == 0 ? 1 : s.in_features / s.group_size; }

int64_t panel_bytes(const WeightLayout& layout, int bits, const WeightShape& s) {
  const int64_t floats = group_count(s) * layout.columns * (s.zero_points ? 2 : 1);
  return padded_features(s) * layout.columns * bits / 8 + floats * static_cast<int64_t>(sizeof(float));
}

// One run of a column into its place; int4: two runs.
template <int bits, int run, int nibbles>
void pack_run(uint8_t* to, const int8_t* q) {
  if constexpr (bits == 8) {
    memcpy(to, q, run);
  } else {
    for (int i = 0; i < run; ++i) {
      to[i] = static_cast<uint8_t>(((q[i] & 15) | ((q[run + i] & 15) << 4)) ^ nibbles);
    }
  }
}

template <int bits, int columns, int run, int nibbles>
void pack_panel(const PackWeightArgs& a, int64_t panel, uint8_t* to) {
  constexpr int64_t kBlock = bits == 4 ? 2 * run : run;
  const WeightShape& s = a.shape;
  const int64_t first = panel * columns, groups = group_count(s), padded = padded_features(s);
  const int64_t whole = s.in_features / kBlock * kBlock;
  for (int64_t n = 0; n < columns; ++n) {
    uint8_t* column = to + n * run;
    int64_t k = 0;
    if (first + n < s.out_features) {
      const int8_t* from = a.q + (first + n) * a.q_stride;
      for (; k < whole; k += kBlock) pack_run<bits, run, nibbles>(column + k * columns * bits / 8, from + k);
      if (k < s.in_features) {
        int8_t last[kBlock] = {};
        memcpy(last, from + k, static_cast<size_t>(s.in_features - k));
        pack_run<bits, run, nibbles>(column + k * columns * bits / 8, last);
        k += kBlock;
      }
    }
    constexpr int8_t kZeros[kBlock] = {};
    for (; k < padded; k += kBlock) pack_run<bits, run, nibbles>(column + k * columns * bits / 8, kZeros);
  }
  float* floats = reinterpret_cast<float*>(to + padded * columns * bits / 8);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < columns; ++n) {
      const bool there = first + n < s.out_features;
      const int64_t at = (first + n) * groups + g;
      floats[g * columns + n] = there ? a.scales[at] : 0;
      if (s.zero_points) {
        floats[(groups + g) * columns + n] = there ? -a.scales[at] * static_cast<float>(a.zeros[at]) : 0;
      }
    }
  }
}

using PackPanel = void(const PackWeightArgs&, int64_t panel, uint8_t* to);

template <const WeightLayout& layout>
PackPanel* packer_of(int bits) {
  constexpr int kColumns = layout.columns, kRun = layout.run, kNibbles = layout.nibbles;
  return bits == 4 ? pack_panel<4, kColumns, kRun, kNibbles> : pack_panel<8, kColumns, kRun, kNibbles>;
}

PackPanel* packer(const WeightLayout& layout, int bits) {
  if (&layout == &kColumns16) return packer_of<kColumns16>(bits);
  if (&layout == &kColumns4x4) return packer_of<kColumns4x4>(bits);
  if (&layout == &kColumns4x8) return packer_of<kColumns4x8>(bits);
  return packer_of<kColumns4x8Offset>(bits);
}

}  // namespace

const WeightLayout& layout_of_target(const std::string& target) {
  for (const TargetLayout& known : kTargetLayouts) {
    if (target == known.target) return *known.layout;
  }
  throw std::invalid_argument("target " + target + " has no layout of packed weights");
}

int64_t packed_bytes(const WeightLayout& layout, int bits, const WeightShape& shape) {
  check_weight(bits, shape);
  return ceil_div(shape.out_features, layout.columns) * panel_bytes(layout, bits, shape);
}

void pack_weight(const WeightLayout& layout, int bits, const PackWeightArgs& args) {
  check_weight(bits, args.shape);
  constexpr int64_t kElements = 65536;
  PackPanel* pack = packer(layout, bits);
  const int64_t size = panel_bytes(layout, bits, args.shape);
  const int64_t panels = ceil_div(args.shape.out_features, layout.columns);
  parallel_ranges(panels, layout.columns * args.shape.in_features, kElements,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t panel = begin; panel < end; ++panel) {
                      pack(args, panel, static_cast<uint8_t*>(args.packed) + panel * size);
                    }
                  });
}

}  // namespace armllm
