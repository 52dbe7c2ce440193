// What every target's quantized products share: the packed weight and the rows of the result, beside the
// activations of matmul_activations.h. A target brings, before it includes this,
//   kLayout        of the packed weight (armllm/layouts.h)
//   kRowChunk      elements of a row of activations that lie together, row after row of a tile
//   kRowsOfPair    rows that must come together: 1, or 2, where a row of zeros makes up an odd number
//   kPanelsOfRow   how many panels a tile of a single row meets at a time
//   kFewRows       up to how many rows memory, not computing, is the limit: their tiles meet two panels at a
//                  time, and up to half as many rows four. 1: none meets more than one
//   kBlockFeatures features that a tile of several rows takes at a time where its activations would fill the
//                  first-level cache, a multiple of the longest group; 0: it always takes all of them
//   matmul_tile_rows(bits, grouped)  the most rows of a tile, at most kMaxTileRows
// and after it, for ARMLLM_MATMUL_ENTRIES, a function that multiplies a tile by panels, and what it wants to
// know of the activations besides.

#pragma once

#include "kernels/matmul_activations.h"

static_assert(reads_layout(ARMLLM_SECTION, kLayout), "csrc/include/armllm/layouts.h says otherwise");

template <int bits>
inline constexpr int64_t kColumnsOfPanel = kLayout.columns_of(bits);

// A panel, as csrc/pack.cpp writes it.
template <int bits>
ARMLLM_INLINE int64_t weight_bytes(const WeightShape& s) {
  return padded_features(s) * kColumnsOfPanel<bits> * stored_bits(s, bits) / 8;
}
template <int bits>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  const int64_t of_group = scale_bytes(s) + (s.zero_points ? 4 : 0);
  return weight_bytes<bits>(s) + weight_groups(s) * kColumnsOfPanel<bits> * of_group;
}

// A tile of rows and a panel, and where their product goes.
struct Product {
  const uint8_t* weights;
  const float* scales;
  const float* zeros;  // null without zero points
  const int8_t* q;
  const float* sums;
  const char* more;  // of all rows
  int64_t features, group, groups, rows;
  int64_t first_row;
  bool grouped, single;         // groups of group_size; one row in all
  bool decoded;                 // weights of 4 bits from a `Decoder`, as 8 bits are packed
  int64_t panels, panel_bytes;  // panels follow each other; more than one only with `panels_beside` rows
  int64_t scale_stride;         // floats from a panel's scales to those of the next
  float* out;                   // [panels, rows, columns]: a row's scale is still missing
  // The features to take now, from the first to before the last, and where a panel's sums wait for the next.
  int64_t begin = 0, end = 0;
  float* waiting = nullptr;
};

// How many panels at most a tile that has all `rows` meets at a time: memory answers several streams sooner.
constexpr ARMLLM_INLINE int64_t panels_beside(int64_t rows) {
  if (rows == 1) return kPanelsOfRow;
  if (kFewRows == 1 || rows > kFewRows) return 1;
  return rows > kFewRows / 2 ? 2 : 4;
}

// The rows of a tile's results, of all its panels together, at most.
constexpr int64_t result_rows() {
  int64_t most = kPanelsOfRow * kRowsOfPair;
  for (int64_t rows = 2; rows <= kMaxTileRows; ++rows) {
    if (rows * panels_beside(rows) > most) most = rows * panels_beside(rows);
  }
  return most;
}

// Where a panel's scales are, given those of the first.
ARMLLM_INLINE const float* of_panel(const float* first, const Product& p, int64_t panel) {
  return first + panel * p.scale_stride;
}

// out += sum of q * (-scale * zero) * `one`, which is 1 in the units of the sums of products.
template <int bits>
ARMLLM_INLINE void add_zero_points(const Product& p, float one) {
  if (p.zeros == nullptr) return;
  for (int64_t i = 0; i < p.panels * p.rows; ++i) {
    const float* zeros = p.zeros + i / p.rows * (p.panel_bytes / 4);
    for (int64_t n = 0; n < kColumnsOfPanel<bits>; n += kLanes) {
      Vf total = load(p.out + i * kColumnsOfPanel<bits> + n);
      for (int64_t g = 0; g < p.groups; ++g) {
        total = fma(load(zeros + g * kColumnsOfPanel<bits> + n), splat(p.sums[g * p.rows + i % p.rows] * one),
                    total);
      }
      store(p.out + i * kColumnsOfPanel<bits> + n, total);
    }
  }
}

// A panel of rows `first` to `first` + `rows` into the result, times the rows' scales and `unit`.
template <int bits, class T>
ARMLLM_INLINE void store_panel(const MatmulArgs& a, const float* from, const float* scales, float unit,
                               int64_t first, int64_t rows, int64_t panel) {
  for (int64_t i = 0; i < kColumnsOfPanel<bits>; i += kLanes) {
    const int64_t column = panel * kColumnsOfPanel<bits> + i, n = a.shape.out_features - column;
    if (n <= 0) return;
    const T* bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + column;
    const Vf more = bias == nullptr ? zero() : n >= kLanes ? load(bias) : load_first(bias, n);
    T* out = static_cast<T*>(a.out) + first * a.out_stride + column;
    for (int64_t r = 0; r < rows; ++r) {
      Vf v = mul(load(from + r * kColumnsOfPanel<bits> + i), splat(scales[first + r] * unit));
      if (bias != nullptr) v = add(v, more);
      if (n >= kLanes) {
        store(out, v);
      } else {
        store_first(out, v, n);
      }
      out += a.out_stride;
    }
  }
}

#if !defined(ARMLLM_WIDEN_SIXTEEN)  // which says that the target brings its own
template <class T>
ARMLLM_INLINE void widen_sixteen(const T* from, float* to) {
  Vf some[16 / kLanes];  // loads first: they and the stores might be the same memory, to a compiler
  ARMLLM_UNROLL for (int j = 0; j < 16 / kLanes; ++j)
    some[j] = load(from + j * kLanes);
  ARMLLM_UNROLL for (int j = 0; j < 16 / kLanes; ++j)
    store(to + j * kLanes, some[j]);
}
#endif

// Scales that are stored in 16 bits, as floats: of `count`, a multiple of 4.
static ARMLLM_ENTRY void widen_scales(Storage type, const uint8_t* from, int64_t count, float* to) {
  const auto widen = [&](const auto* scales) __attribute__((always_inline)) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) widen_sixteen(scales + i, to + i);
    for (; i < count; i += kLanes) store(to + i, load(scales + i));
  };
  if (type == Storage::f16) return widen(reinterpret_cast<const float16*>(from));
  widen(reinterpret_cast<const bfloat16*>(from));
}

// The scales of a product's panels for its features, and its zero points; the first panel's scales are at
// `stored`. Kernels read floats, so those of 16 bits go through `wide`, in the first-level cache.
template <int bits>
ARMLLM_INLINE void find_scales(Product& p, const WeightShape& s, const uint8_t* stored, float* wide) {
  const int64_t all = p.groups * kColumnsOfPanel<bits>, size = scale_bytes(s), stride = panel_bytes<bits>(s);
  if (s.zero_points) p.zeros = reinterpret_cast<const float*>(stored + all * size);
  if (s.scales == Storage::f32) {
    p.scales = reinterpret_cast<const float*>(stored);
    p.scale_stride = stride / 4;
    return;
  }
  const int64_t first = p.begin / p.group * kColumnsOfPanel<bits>,
                last = (p.end + p.group - 1) / p.group * kColumnsOfPanel<bits>;
  for (int64_t j = 0; j < p.panels; ++j) {
    widen_scales(s.scales, stored + j * stride + first * size, last - first, wide + j * all + first);
  }
  p.scales = wide;
  p.scale_stride = all;
}

#if !defined(ARMLLM_LOOK_UP)  // which says that the target brings its own
// Numbers in a table become a panel of 8 bits: 64 bytes of it are the low and then the high halves of 32,
// whatever the layout.
ARMLLM_INLINE void look_up(const int8_t* table, const uint8_t* panel, int64_t bytes, uint8_t* to) {
#if ARMLLM_LANES == 4
  const uint8x16_t all = vld1q_u8(reinterpret_cast<const uint8_t*>(table)), low = vdupq_n_u8(15);
#elif ARMLLM_LANES >= 8
  const __m128i once = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i all = _mm256_broadcastsi128_si256(once), low = _mm256_set1_epi8(15);
#endif
  for (int64_t k = 0; k < bytes; k += 64, panel += 32, to += 64) {
    ARMLLM_LOOP("look_up", 16);
#if ARMLLM_LANES == 4
    const uint8x16_t first = vld1q_u8(panel), second = vld1q_u8(panel + 16);
    vst1q_u8(to, vqtbl1q_u8(all, vandq_u8(first, low)));
    vst1q_u8(to + 16, vqtbl1q_u8(all, vandq_u8(second, low)));
    vst1q_u8(to + 32, vqtbl1q_u8(all, vshrq_n_u8(first, 4)));
    vst1q_u8(to + 48, vqtbl1q_u8(all, vshrq_n_u8(second, 4)));
#elif ARMLLM_LANES >= 8
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(panel));
    __m256i* const out = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(out, _mm256_shuffle_epi8(all, _mm256_and_si256(both, low)));
    const __m256i high = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    _mm256_storeu_si256(out + 1, _mm256_shuffle_epi8(all, high));
#else
    for (int i = 0; i < 32; ++i) {
      to[i] = static_cast<uint8_t>(table[panel[i] & 15]);
      to[32 + i] = static_cast<uint8_t>(table[panel[i] >> 4]);
    }
#endif
  }
}
#endif
static ARMLLM_ENTRY void look_up_panel(const uint8_t* panel, Values values, int64_t bytes, uint8_t* to) {
  look_up(kTables[static_cast<int>(values)], panel, bytes, to);
}

// How integers of 4 bits are brought to 8 where many rows meet them: `decode` writes a panel's weights, 1 /
// `unit` times as large, as a panel of 8 bits has them, and `tile` multiplies by those. Both null: never.
struct Decoder {
  void (*decode)(const uint8_t* panel, int64_t features, uint8_t* to);
  void (*tile)(const Product&);
};
inline constexpr Decoder kNoDecoder{nullptr, nullptr};

// A tile takes a block of features of so many panels, one after the other, and then the next block: so its
// activations of the block stay in the first-level cache (64 KiB, which weights pass through). Integers and
// floats wait in memory and are added to in the same order, so that no bit depends on it.
inline constexpr int64_t kTileBytes = 32 * 1024, kPanelsBeside = 16;
static_assert(kBlockFeatures % 128 == 0, "a block is whole groups");
ARMLLM_INLINE int64_t block_of(int64_t rows, int64_t features) {
  const bool is_whole = kBlockFeatures == 0 || rows == 1 || are_few(rows) || rows * features <= kTileBytes;
  return is_whole ? features : kBlockFeatures;
}

#if !defined(ARMLLM_PREPARED)  // which says that the target brings its own
// What is there while tiles of `rows` in all are multiplied.
struct Prepared {
  explicit ARMLLM_MEMBER Prepared(int64_t) {}
};
#endif

// `unit` is what a product of integers counts: 1/16 where nibbles stand in the high half of a byte.
template <int bits, class T>
// NOLINTNEXTLINE(readability-function-size) - nested loops over the same dozen counts
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end, float unit, void (*tile_by_panel)(const Product&),
                            const Decoder& decoder) {
  ARMLLM_BLOCK(bits, kBlockFeatures, kPanelsBeside, kTileBytes);
  [[maybe_unused]] const Prepared prepared(a.rows);
  const WeightShape& s = a.shape;
  const Activations x = Activations::at(a.activations, s, a.rows);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int64_t size = panel_bytes<bits>(s), groups = weight_groups(s), features = padded_features(s);
  const int64_t together = panels_beside(a.rows);
  alignas(64) float result[result_rows() * kColumnsOfPanel<bits>];
  alignas(64) float waiting[kBlockFeatures == 0 ? 1 : kPanelsBeside * kMaxTileRows * kColumnsOfPanel<bits>];
  float* const wide = static_cast<float*>(a.scratch);
  const int64_t together_floats =
      s.scales == Storage::f32 ? 0 : kPanelsOfRow * kColumnsOfPanel<bits> * groups;
  uint8_t* const decoded = reinterpret_cast<uint8_t*>(wide) + round_up(together_floats * 4, 64);
  const int64_t decoded_size = features * kColumnsOfPanel<bits>;
  const bool from_table = bits == 8 && s.values != Values::integers;
  const bool from_halves = decoder.decode != nullptr && a.scratch != nullptr &&
                           decoded_size <= kDecodedBytes &&
                           tiling.first_row(tile_end) - tiling.first_row(tile_begin) >= kDecodedRows;
  const bool decode = from_table || from_halves;
  const int64_t most = tile_end - tile_begin == 1 ? kDecodedBytesOfTile : kDecodedBytes;
  const int64_t block = !decode ? panel_end - panel_begin : decoded_size < most ? most / decoded_size : 1;
  for (int64_t begin = panel_begin; begin < panel_end; begin += block) {
    const int64_t end = panel_end - begin < block ? panel_end : begin + block;
    for (int64_t panel = begin; decode && panel < end; ++panel) {
      const uint8_t* const packed = static_cast<const uint8_t*>(a.weight) + panel * size;
      uint8_t* const to = decoded + (panel - begin) * decoded_size;
      if (from_table) {
        look_up_panel(packed, s.values, decoded_size, to);
      } else {
        decoder.decode(packed, features, to);
      }
    }
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const int64_t first = tiling.first_row(tile), rows = tiling.first_row(tile + 1) - first;
      const int64_t real = a.rows - first < rows ? a.rows - first : rows;
      Product product{nullptr,
                      nullptr,
                      nullptr,
                      x.q + first * features,
                      x.sums + first * groups,
                      x.more,
                      features,
                      group_length(s),
                      groups,
                      rows,
                      first,
                      s.group_size != 0,
                      a.rows == 1,
                      from_halves,
                      together,
                      from_table ? decoded_size : size,
                      size / 4,
                      result};
      const int64_t part = block_of(a.rows == 1 ? 1 : rows, features);
      const auto take_block = [&](int64_t panel, float* sums) __attribute__((always_inline)) {
        const uint8_t* packed = static_cast<const uint8_t*>(a.weight) + panel * size;
        product.weights = decode ? decoded + (panel - begin) * decoded_size : packed;
        product.panels = end - panel < together ? end - panel : together;
        find_scales<bits>(product, s, packed + weight_bytes<bits>(s), wide);
        product.waiting = sums;
        if (from_halves) {
          decoder.tile(product);
        } else {
          tile_by_panel(product);
        }
        if (product.end < features) return;
        for (int64_t j = 0; j < product.panels; ++j) {
          store_panel<bits, T>(a, result + j * rows * kColumnsOfPanel<bits>, x.scales, unit, first, real,
                               panel + j);
        }
      };
      const int64_t beside = part < features ? kPanelsBeside : end - begin;
      for (int64_t some = begin; some < end; some += beside) {
        const int64_t last = end - some < beside ? end : some + beside;
        product.begin = 0;
        do {
          product.end = features - product.begin < part ? features : product.begin + part;
          for (int64_t panel = some; panel < last; panel += together) {
            take_block(panel,
                       waiting + (part < features ? panel - some : 0) * kMaxTileRows * kColumnsOfPanel<bits>);
          }
          product.begin += part;
        } while (product.begin < features);
      }
    }
  }
}

// Tells tools/cycles.py which tiles up to `rows` rows are cut into, by labels: two digits for each tile.
#if defined(ARMLLM_MARK_LOOPS)
template <int bits, int grouped, int rows>
ARMLLM_INLINE void mark_tiles() {
  constexpr auto written = [] {
    const Tiling tiling = Tiling::of<bits>({0, 0, grouped ? 32 : 0, false}, rows);
    int64_t number = 0;
    for (int64_t i = 0; i < tiling.tiles; ++i)
      number = 100 * number + tiling.first_row(i + 1) - tiling.first_row(i);
    return number;
  };
  __asm__ volatile("armllm_tiles.%c0.%c1.%c2.%c3.%=:" : : "i"(bits), "i"(grouped), "i"(rows), "i"(written()));
  if constexpr (rows > 1) mark_tiles<bits, grouped, rows - 1>();
}
#define ARMLLM_MARK_TILES(bits) \
  mark_tiles<bits, 0, 17>();    \
  mark_tiles<bits, 1, 17>()
#else
#define ARMLLM_MARK_TILES(bits)
#endif

// For targets that want to know nothing more.
template <int>
ARMLLM_INLINE int64_t no_more_bytes(const WeightShape&, int64_t) {
  return 0;
}
template <int>
ARMLLM_INLINE void nothing_more(const MatmulArgs&, int64_t, int64_t) {}

// The table entries of one storage type.
#define ARMLLM_MATMUL_ENTRIES_OF(T, suffix, op, bits, unit, tile_by_panel, decoder, more_bytes, more)        \
  static ARMLLM_ENTRY void op##_quantize_##suffix(const MatmulArgs& a, int64_t begin, int64_t end) {         \
    quantize_activations<bits, T>(a, begin, end);                                                            \
    more<bits>(a, begin, end);                                                                               \
  }                                                                                                          \
  static ARMLLM_ENTRY void op##_multiply_##suffix(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, \
                                                  int64_t panel_begin, int64_t panel_end) {                  \
    multiply<bits, T>(a, tile_begin, tile_end, panel_begin, panel_end, unit, tile_by_panel, decoder);        \
  }                                                                                                          \
  extern const MatmulKernel op##_##suffix;                                                                   \
  const MatmulKernel op##_##suffix = {&kLayout,                                                              \
                                      kColumnsOfPanel<bits>,                                                 \
                                      op##_panel_bytes,                                                      \
                                      op##_activation_bytes,                                                 \
                                      op##_quantize_##suffix,                                                \
                                      op##_gather,                                                           \
                                      op##_tiles,                                                            \
                                      op##_multiply_##suffix,                                                \
                                      (decoder).decode == nullptr ? 0 : kDecodedBytes,                       \
                                      kDecodedRows,                                                          \
                                      1,                                                                     \
                                      kPanelsOfRow};

#define ARMLLM_MATMUL_ENTRIES(op, bits, unit, tile_by_panel, decoder, more_bytes, more)               \
  static ARMLLM_ENTRY int64_t op##_panel_bytes(const WeightShape& s) { return panel_bytes<bits>(s); } \
  static ARMLLM_ENTRY int64_t op##_activation_bytes(const WeightShape& s, int64_t rows) {             \
    return Activations::at(nullptr, s, rows).bytes + more_bytes<bits>(s, rows);                       \
  }                                                                                                   \
  static ARMLLM_ENTRY void op##_gather(const MatmulArgs& a, const GatherArgs& from, int64_t begin,    \
                                       int64_t end) {                                                 \
    gather_activations<bits>(a, from, begin, end);                                                    \
    more<bits>(a, begin, end);                                                                        \
  }                                                                                                   \
  static ARMLLM_ENTRY int64_t op##_tiles(const WeightShape& s, int64_t rows) {                        \
    ARMLLM_MARK_TILES(bits);                                                                          \
    return Tiling::of<bits>(s, rows).tiles;                                                           \
  }                                                                                                   \
  ARMLLM_MATMUL_ENTRIES_OF(float, f32, op, bits, unit, tile_by_panel, decoder, more_bytes, more)      \
  ARMLLM_MATMUL_ENTRIES_OF(float16, f16, op, bits, unit, tile_by_panel, decoder, more_bytes, more)    \
  ARMLLM_MATMUL_ENTRIES_OF(bfloat16, bf16, op, bits, unit, tile_by_panel, decoder, more_bytes, more)
