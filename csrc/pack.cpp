// Packs weights in any layout, for this machine's kernels or another's.

#include <math.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/layouts.h"
#include "armllm/ops.h"
#include "ranges.h"

namespace armllm {

namespace {

int64_t padded_features(const WeightShape& s) { return ceil_div(s.in_features, kWeightStep) * kWeightStep; }

int64_t panel_bytes(const WeightLayout& layout, int bits, const WeightShape& s) {
  const int64_t columns = layout.columns_of(bits), of_group = scale_bytes(s) + (s.zero_points ? 4 : 0);
  return padded_features(s) * columns * stored_bits(s, bits) / 8 + weight_groups(s) * columns * of_group;
}

// The binary16 number that `value` is.
uint16_t exact_half(float value) {
  const float size = fabsf(value);
  const auto sign = static_cast<uint32_t>(std::signbit(value)) << 15;
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<uint32_t>(size * 0x1p24f));
  int exponent;
  const float part = frexpf(size, &exponent);  // size = part * 2^exponent, part in [0.5, 1)
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent + 14 - 1) << 10) +
         static_cast<uint16_t>(part * 2048);
}

// One run into its place; int4: two runs.
template <int bits, int run, int nibbles>
void pack_run(uint8_t* to, const int8_t* low, const int8_t* high) {
  if constexpr (bits == 8) {
    memcpy(to, low, run);
  } else {
    for (int i = 0; i < run; ++i)
      to[i] = static_cast<uint8_t>(((low[i] & 15) | ((high[i] & 15) << 4)) ^ nibbles);
  }
}

// Columns `first` (high) and `first` + `pairs` (low), in runs.
template <int columns, int run, int nibbles, int pairs>
void pack_pair(const PackWeightArgs& a, int64_t first, int64_t padded, uint8_t* to) {
  const WeightShape& s = a.shape;
  const int64_t step = run * columns / 2, whole = s.in_features / run * run;
  int8_t last[2][run] = {};
  const int8_t* from[2] = {};
  for (int64_t n = 0; n < 2 && first + n * pairs < s.out_features; ++n) {
    from[n] = a.q + (first + n * pairs) * a.q_stride;
    memcpy(last[n], from[n] + whole, static_cast<size_t>(s.in_features - whole));
  }
  constexpr int8_t kZeros[run] = {};
  for (int64_t k = 0; k < padded; k += run, to += step) {
    const int8_t* runs[2];
    for (int n = 0; n < 2; ++n)
      runs[n] = from[n] == nullptr || k > whole ? kZeros : k < whole ? from[n] + k : last[n];
    pack_run<4, run, nibbles>(to, runs[1], runs[0]);
  }
}

// A column `first` in blocks of kBlock elements.
template <int bits, int columns, int run, int nibbles>
void pack_column(const PackWeightArgs& a, int64_t first, int64_t padded, uint8_t* to) {
  constexpr int64_t kBlock = bits == 4 ? 2 * run : run, kHigh = kBlock - run;
  const WeightShape& s = a.shape;
  const int64_t whole = s.in_features / kBlock * kBlock;
  int64_t k = 0;
  if (first < s.out_features) {
    const int8_t* from = a.q + first * a.q_stride;
    for (; k < whole; k += kBlock) {
      pack_run<bits, run, nibbles>(to + k * columns * bits / 8, from + k, from + k + kHigh);
    }
    if (k < s.in_features) {
      int8_t last[kBlock] = {};
      memcpy(last, from + k, static_cast<size_t>(s.in_features - k));
      pack_run<bits, run, nibbles>(to + k * columns * bits / 8, last, last + kHigh);
      k += kBlock;
    }
  }
  constexpr int8_t kZeros[kBlock] = {};
  for (; k < padded; k += kBlock) {
    pack_run<bits, run, nibbles>(to + k * columns * bits / 8, kZeros, kZeros + kHigh);
  }
}

// A scale that is exact in `type`.
void pack_scale(Storage type, float scale, uint8_t* to) {
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  if (type == Storage::f32) {
    memcpy(to, &bits, sizeof bits);
    return;
  }
  const uint16_t half = type == Storage::bf16 ? static_cast<uint16_t>(bits >> 16) : exact_half(scale);
  memcpy(to, &half, sizeof half);
}

// The numbers that a panel's integers have in their table: of each 64 the first half is the low halves of
// bytes. False if one is not in the table.
bool pack_numbers(Values values, const std::vector<uint8_t>& panel, uint8_t* to) {
  constexpr uint8_t kNone = kTableSize;
  uint8_t numbers[256], all = 0;
  memset(numbers, kNone, sizeof numbers);
  for (int i = kTableSize - 1; i >= 0; --i) {
    numbers[static_cast<uint8_t>(kTables[static_cast<int>(values)][i])] = static_cast<uint8_t>(i);
  }
  for (size_t k = 0; k < panel.size(); k += 64) {
    for (size_t i = k; i < k + 32; ++i) {
      const uint8_t low = numbers[panel[i]], high = numbers[panel[i + 32]];
      all |= static_cast<uint8_t>(low | high);
      *to++ = static_cast<uint8_t>(low | high << 4);
    }
  }
  return (all & kNone) == 0;
}

template <int bits, int columns, int run, int nibbles, int pairs>
void pack_integers(const PackWeightArgs& a, int64_t first, int64_t padded, uint8_t* to) {
  if constexpr (bits == 4 && pairs != 0) {
    for (int64_t n = 0; n < columns / 2; ++n) {
      pack_pair<columns, run, nibbles, pairs>(a, first + n / pairs * 2 * pairs + n % pairs, padded,
                                              to + n * run);
    }
  } else {
    for (int64_t n = 0; n < columns; ++n) {
      pack_column<bits, columns, run, nibbles>(a, first + n, padded, to + n * run);
    }
  }
}

template <int bits, int columns, int run, int nibbles, int pairs>
bool pack_panel(const PackWeightArgs& a, int64_t panel, uint8_t* to) {
  const WeightShape& s = a.shape;
  bool known = true;
  const int64_t first = panel * columns, groups = weight_groups(s), padded = padded_features(s);
  if (bits == 4 || s.values == Values::integers) {
    pack_integers<bits, columns, run, nibbles, pairs>(a, first, padded, to);
  } else {
    std::vector<uint8_t> integers(static_cast<size_t>(padded * columns));
    pack_integers<bits, columns, run, nibbles, pairs>(a, first, padded, integers.data());
    known = pack_numbers(s.values, integers, to);
  }
  uint8_t* const scales = to + padded * columns * stored_bits(s, bits) / 8;
  const int64_t size = scale_bytes(s);
  float* const offsets = reinterpret_cast<float*>(scales + groups * columns * size);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t n = 0; n < columns; ++n) {
      const bool there = first + n < s.out_features;
      const int64_t at = (first + n) * groups + g;
      pack_scale(s.scales, there ? a.scales[at] : 0, scales + (g * columns + n) * size);
      if (s.zero_points) offsets[g * columns + n] = there ? a.offsets[at] : 0;
    }
  }
  return known;
}

using PackPanel = bool(const PackWeightArgs&, int64_t panel, uint8_t* to);

template <const WeightLayout& layout>
PackPanel* packer_of(int bits) {
  constexpr int kColumns = layout.columns, kInt4Columns = layout.int4_columns, kRun = layout.run,
                kNibbles = layout.nibbles;
  constexpr int kPairs = layout.pairs;
  return bits == 4 ? pack_panel<4, kInt4Columns, kRun, kNibbles, kPairs>
                   : pack_panel<8, kColumns, kRun, kNibbles, kPairs>;
}

PackPanel* packer(const WeightLayout& layout, int bits) {
  if (&layout == &kColumns16) return packer_of<kColumns16>(bits);
  if (&layout == &kColumnPairs4x4) return packer_of<kColumnPairs4x4>(bits);
  if (&layout == &kColumns4x8) return packer_of<kColumns4x8>(bits);
  if (&layout == &kColumns16x4) return packer_of<kColumns16x4>(bits);
  return packer_of<kColumnPairs4x8>(bits);
}

// Columns `begin` to `end` of a panel, from rows `stride` apart, in units of the elements that stand
// together.
template <class Unit>
void interleave(const char* rows, int64_t stride, int64_t begin, int64_t end, int64_t units, void* panel) {
  const Unit* from = reinterpret_cast<const Unit*>(rows);
  Unit* to = static_cast<Unit*>(panel) + begin;
  if (end - begin == kPanelColumns) {
    for (int64_t k = 0; k < units; ++k, to += kPanelColumns) {
      for (int64_t n = 0; n < kPanelColumns; ++n) to[n] = from[n * stride + k];
    }
    return;
  }
  for (int64_t k = 0; k < units; ++k, to += kPanelColumns) {
    for (int64_t n = 0; n < end - begin; ++n) to[n] = from[n * stride + k];
  }
}

// Rows, whose elements of `from_size` bytes `convert` makes those of `size` bytes, or which are copied; so
// many elements of a column stand together.
void pack_columns(Activation* convert, int64_t size, int64_t from_size, int64_t together,
                  const PackPanelsArgs& args) {
  // Features at a time: sixteen rows of them stay in the first-level cache.
  constexpr int64_t kFeatures = 256;
  static_assert(kFeatures <= kActivationChunk);
  const int64_t n = args.in_features, unit = size * together;
  const auto pack = [&](int64_t panel, int64_t begin, int64_t end) {
    alignas(64) char rows[kPanelColumns * kFeatures * sizeof(float)];
    char* out = static_cast<char*>(args.panels) + panel * panel_elements(n) * size;
    const char* in = static_cast<const char*>(args.rows) +
                     (panel * kPanelColumns + begin - args.first) * args.stride * from_size;
    for (int64_t k = 0; k < n; k += kFeatures) {
      const int64_t width = std::min(kFeatures, n - k), whole = ceil_div(width, 4) * 4;
      if (convert != nullptr) {
        convert({rows, in + k * from_size, end - begin, width, kFeatures, args.stride}, 0, end - begin);
      }
      for (int64_t r = 0; r < end - begin; ++r) {
        char* const row = rows + r * kFeatures * size;
        if (convert == nullptr) {
          memcpy(row, in + (r * args.stride + k) * size, static_cast<size_t>(width * size));
        }
        memset(row + width * size, 0, static_cast<size_t>((whole - width) * size));
      }
      char* const there = out + k * kPanelColumns * size;
      const int64_t units = whole / together, stride = kFeatures / together;
      if (unit == 1) interleave<uint8_t>(rows, stride, begin, end, units, there);
      if (unit == 2) interleave<uint16_t>(rows, stride, begin, end, units, there);
      if (unit == 4) interleave<uint32_t>(rows, stride, begin, end, units, there);
      if (unit == 8) interleave<uint64_t>(rows, stride, begin, end, units, there);
    }
  };
  constexpr int64_t kElements = 65536;
  const int64_t first = args.first / kPanelColumns, last = args.first + args.count;
  parallel_ranges(ceil_div(last, kPanelColumns) - first, kPanelColumns * n, kElements,
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t i = begin; i < end; ++i) {
                      const int64_t column = (first + i) * kPanelColumns;
                      pack(first + i, std::max<int64_t>(0, args.first - column),
                           std::min<int64_t>(kPanelColumns, last - column));
                    }
                  });
}

}  // namespace

void touch_pages(void* memory, int64_t bytes) {
  constexpr int64_t kPage = 4096, kLeast = 16;  // pages that are worth waking a thread
  const int threads = num_threads();
  const int64_t pages = ceil_div(bytes, kPage);
  if (threads == 1 || pages < kLeast * threads) return;
  // One item for each thread: nobody takes those of others.
  parallel_for(threads, threads, [&](int64_t item, int) {
    volatile char* const first = static_cast<volatile char*>(memory);
    for (int64_t page = pages * item / threads; page < pages * (item + 1) / threads; ++page) {
      first[page * kPage] = 0;
    }
  });
}

void pack_panels(const KernelTable& table, Storage to, Storage from, const PackPanelsArgs& args) {
  pack_columns(converter(table, to, from), bytes_of(to), bytes_of(from),
               matmul_kernel(table, WeightForm::panels, to).features_together, args);
}

void pack_fp8(const KernelTable& table, Storage storage, const PackPanelsArgs& args) {
  pack_columns(nullptr, 1, 1, matmul_kernel(table, WeightForm::fp8, storage).features_together, args);
}

const WeightLayout& layout_of_target(const std::string& target) {
  for (const TargetLayout& known : kTargetLayouts) {
    if (target == known.target) return *known.layout;
  }
  throw std::invalid_argument("target " + target + " has no layout of packed weights");
}

int64_t packed_bytes(const WeightLayout& layout, int bits, const WeightShape& shape) {
  check_weight(bits, shape);
  return ceil_div(shape.out_features, layout.columns_of(bits)) * panel_bytes(layout, bits, shape);
}

bool pack_weight(const WeightLayout& layout, int bits, const PackWeightArgs& args) {
  check_weight(bits, args.shape);
  constexpr int64_t kElements = 65536;
  std::atomic<bool> known = true;
  PackPanel* pack = packer(layout, bits);
  const int64_t size = panel_bytes(layout, bits, args.shape);
  const int64_t columns = layout.columns_of(bits);
  const int64_t panels = ceil_div(args.shape.out_features, columns);
  parallel_ranges(panels, columns * args.shape.in_features, kElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t panel = begin; panel < end; ++panel) {
      if (!pack(args, panel, static_cast<uint8_t*>(args.packed) + panel * size)) known = false;
    }
  });
  return known;
}

}  // namespace armllm
