// What every target's quantised products share: the packed weight, the quantised activations, the rows of the
// result. A target brings, before it includes this,
//   kLayout        of the packed weight (armllm/layouts.h)
//   kRowChunk      elements of a row of activations that lie together, row after row of a tile
//   kRowsOfPair    rows that must come together: 1, or 2, where a row of zeros makes up an odd number
//   kPanelsOfRow   how many panels at most a tile of a single row meets at a time
//   matmul_tile_rows(bits, grouped)  the most rows of a tile, at most kMaxTileRows
// and after it, for ARMLLM_MATMUL_ENTRIES, a function that multiplies a tile by panels, and what it wants to
// know of the activations besides.

static_assert(reads_layout(ARMLLM_SECTION, kLayout), "csrc/include/armllm/layouts.h says otherwise");

// Rows of activations are padded with zeros to whole steps, as weights are.
inline constexpr int64_t kStep = kWeightStep;
template <int bits>
inline constexpr int64_t kPanelColumns = kLayout.columns_of(bits);

ARMLLM_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
ARMLLM_INLINE int64_t padded_features(const WeightShape& s) { return round_up(s.in_features, kStep); }
ARMLLM_INLINE int64_t group_length(const WeightShape& s) {
  return s.group_size == 0 ? padded_features(s) : s.group_size;
}
ARMLLM_INLINE int64_t group_count(const WeightShape& s) {
  return s.group_size == 0 ? 1 : s.in_features / s.group_size;
}

// A panel, as csrc/pack.cpp writes it.
template <int bits>
ARMLLM_INLINE int64_t weight_bytes(const WeightShape& s) {
  return padded_features(s) * kPanelColumns<bits> * bits / 8;
}
template <int bits>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  const int64_t floats = group_count(s) * kPanelColumns<bits> * (s.zero_points ? 2 : 1);
  return weight_bytes<bits>(s) + floats * static_cast<int64_t>(sizeof(float));
}

// Rows are cut into tiles of about the same size.
struct Tiling {
  int64_t pairs, tiles;

  template <int bits>
  static constexpr ARMLLM_MEMBER Tiling of(const WeightShape& s, int64_t rows) {
    const int64_t pairs = (rows + kRowsOfPair - 1) / kRowsOfPair;
    const int64_t most = matmul_tile_rows(bits, s.group_size != 0) / kRowsOfPair;
    return {pairs, (pairs + most - 1) / most};
  }
  constexpr ARMLLM_MEMBER int64_t first_row(int64_t tile) const {
    const int64_t each = pairs / tiles, more = pairs % tiles;
    return (tile * each + (tile < more ? tile : more)) * kRowsOfPair;
  }
  ARMLLM_MEMBER int64_t tile_of(int64_t row) const {
    const int64_t pair = row / kRowsOfPair, each = pairs / tiles, more = pairs % tiles;
    return pair < more * (each + 1) ? pair / (each + 1) : more + (pair - more * (each + 1)) / each;
  }
};

// The activations of a call, all rows padded to whole pairs:
//   q      per tile [steps of kRowChunk, rows of the tile, kRowChunk]
//   sums   per tile [groups, rows of the tile]: the sum of a group's q
//   scales [rows]
struct Activations {
  int8_t* q;
  float* sums;
  float* scales;
  char* more;  // what the target keeps beside them
  int64_t bytes;

  static ARMLLM_MEMBER Activations at(void* memory, const WeightShape& s, int64_t rows) {
    const int64_t padded = round_up(rows, kRowsOfPair);
    char* p = static_cast<char*>(memory);
    Activations a{};
    a.q = reinterpret_cast<int8_t*>(p);
    a.bytes = round_up(padded * padded_features(s), 64);
    a.sums = reinterpret_cast<float*>(p + a.bytes);
    a.bytes += round_up(padded * group_count(s) * 4, 64);
    a.scales = reinterpret_cast<float*>(p + a.bytes);
    a.bytes += round_up(padded * 4, 64);
    a.more = p + a.bytes;
    return a;
  }
};

template <bool held>
ARMLLM_INLINE Vf quotient(Vf x, Vf scale) {
  if (!held) return rounded_quotient(x, scale);
  const Vf v = min(max(div(x, scale), splat(-127.0f)), splat(127.0f));
  return sub(add(v, splat(kRounder)), splat(kRounder));
}

// One row of int8 into its place in its tile; row.zero is 0. held: the scale is not the row's own, and what
// is beyond 127 steps becomes 127.
template <class T, bool held>
ARMLLM_INLINE void quantize_row(const T* x, const WeightShape& s, RowScale row, int8_t* q, float* sums,
                                int64_t tile_rows) {
  static_assert(kRowChunk % kLanes == 0 && kStep % kRowChunk == 0, "a vector lies within a chunk");
  const int64_t length = group_length(s), n = s.in_features;
  const Vf scale = splat(row.scale);
  for (int64_t g = 0; g < group_count(s); ++g) {
    Vf sum = zero();
    for (int64_t k = g * length; k < (g + 1) * length; k += kRowChunk) {
      int8_t* chunk = q + k * tile_rows;
      for (int64_t i = 0; i < kRowChunk; i += kLanes) {
        Vf v = zero();
        if (k + i + kLanes <= n) {
          v = quotient<held>(load(x + k + i), scale);
        } else if (k + i < n) {
          v = quotient<held>(load_first(x + k + i, n - k - i), scale);
        }
        sum = add(sum, v);
        store_bytes(chunk + i, v);
      }
    }
    sums[g * tile_rows] = reduce_add(sum);
  }
}

// Rows `begin` to `end` of the activations. row_into(row, q, sums, tile_rows) fills one, or returns a scale
// that is not above 0 for a row of zeros.
template <int bits, class RowInto>
ARMLLM_INLINE void fill_activations(const MatmulArgs& a, int64_t begin, int64_t end, RowInto row_into) {
  const WeightShape& s = a.shape;
  const Activations to = Activations::at(a.activations, s, a.rows);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int64_t groups = group_count(s), features = padded_features(s);
  // The last row brings the other of its pair along.
  const int64_t stop = end == a.rows ? round_up(end, kRowsOfPair) : end;
  for (int64_t r = begin; r < stop; ++r) {
    const int64_t tile = tiling.tile_of(r), first = tiling.first_row(tile);
    const int64_t tile_rows = tiling.first_row(tile + 1) - first;
    int8_t* q = to.q + first * features + (r - first) * kRowChunk;
    float* sums = to.sums + first * groups + (r - first);
    to.scales[r] = r < a.rows ? row_into(r, q, sums, tile_rows) : 0.0f;
    if (!(to.scales[r] > 0)) {
      for (int64_t k = 0; k < features; k += kRowChunk) memset(q + k * tile_rows, 0, kRowChunk);
      for (int64_t g = 0; g < groups; ++g) sums[g * tile_rows] = 0;
    }
  }
}

template <int bits, class T>
ARMLLM_INLINE void quantize_activations(const MatmulArgs& a, int64_t begin, int64_t end) {
  fill_activations<bits>(a, begin, end,
                         [&](int64_t r, int8_t* q, float* sums, int64_t tile_rows)
                             __attribute__((always_inline)) {
                               const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
                               RowScale row = row_scale(x, a.shape.in_features, false);
                               const bool held = a.x_scale > 0 && row.scale > 0;
                               if (held) row.scale = a.x_scale;
                               if (held) {
                                 quantize_row<T, true>(x, a.shape, row, q, sums, tile_rows);
                               } else if (row.scale > 0) {
                                 quantize_row<T, false>(x, a.shape, row, q, sums, tile_rows);
                               }
                               return row.scale;
                             });
}

// One row that is int8 already into its place in its tile.
ARMLLM_INLINE void place_row(const int8_t* x, const WeightShape& s, int8_t* q, float* sums,
                             int64_t tile_rows) {
  const int64_t length = group_length(s), n = s.in_features;
  for (int64_t g = 0; g < group_count(s); ++g) {
    int32_t sum = 0;
    for (int64_t k = g * length; k < (g + 1) * length; k += kRowChunk) {
      int8_t chunk[kRowChunk] = {};
      if (k + kRowChunk <= n) {
        memcpy(chunk, x + k, kRowChunk);
      } else if (k < n) {
        memcpy(chunk, x + k, static_cast<size_t>(n - k));
      }
      for (int64_t i = 0; i < kRowChunk; ++i) sum += chunk[i];
      memcpy(q + k * tile_rows, chunk, kRowChunk);
    }
    sums[g * tile_rows] = static_cast<float>(sum);
  }
}

template <int bits>
ARMLLM_INLINE void gather_activations(const MatmulArgs& a, const GatherArgs& from, int64_t begin,
                                      int64_t end) {
  fill_activations<bits>(a, begin, end,
                         [&](int64_t r, int8_t* q, float* sums, int64_t tile_rows)
                             __attribute__((always_inline)) {
                               const int64_t row = from.ids[r];
                               const float scale = from.scales[row];
                               const int8_t* x = static_cast<const int8_t*>(from.rows) + row * from.stride;
                               if (scale > 0) place_row(x, a.shape, q, sums, tile_rows);
                               return scale;
                             });
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
  bool decoded;                 // weights of 4 bits, 16 times too large, as 8 bits are packed
  int64_t panels, panel_bytes;  // panels follow each other; more than one only with a single row
  float* out;                   // [panels, rows, columns]: a row's scale is still missing
};

// Where a panel's floats are, given those of the first.
ARMLLM_INLINE const float* of_panel(const float* first, const Product& p, int64_t panel) {
  return first + panel * (p.panel_bytes / 4);
}

// out += sum of q * (-scale * zero) * `one`, which is 1 in the units of the sums of products.
template <int bits>
ARMLLM_INLINE void add_zero_points(const Product& p, float one) {
  if (p.zeros == nullptr) return;
  for (int64_t i = 0; i < p.panels * p.rows; ++i) {
    const float* zeros = of_panel(p.zeros, p, i / p.rows);
    for (int64_t n = 0; n < kPanelColumns<bits>; n += kLanes) {
      Vf total = load(p.out + i * kPanelColumns<bits> + n);
      for (int64_t g = 0; g < p.groups; ++g) {
        total = fma(load(zeros + g * kPanelColumns<bits> + n), splat(p.sums[g * p.rows + i % p.rows] * one),
                    total);
      }
      store(p.out + i * kPanelColumns<bits> + n, total);
    }
  }
}

// A panel of rows `first` to `first` + `rows` into the result, times the rows' scales and `unit`.
template <int bits, class T>
ARMLLM_INLINE void store_panel(const MatmulArgs& a, const float* from, const float* scales, float unit,
                               int64_t first, int64_t rows, int64_t panel) {
  for (int64_t i = 0; i < kPanelColumns<bits>; i += kLanes) {
    const int64_t column = panel * kPanelColumns<bits> + i, n = a.shape.out_features - column;
    if (n <= 0) return;
    const T* bias = a.bias == nullptr ? nullptr : static_cast<const T*>(a.bias) + column;
    const Vf more = bias == nullptr ? zero() : n >= kLanes ? load(bias) : load_first(bias, n);
    T* out = static_cast<T*>(a.out) + first * a.out_stride + column;
    for (int64_t r = 0; r < rows; ++r) {
      Vf v = mul(load(from + r * kPanelColumns<bits> + i), splat(scales[first + r] * unit));
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

// How weights of 4 bits are brought to 8 where many rows meet them: `decode` writes a panel's weights, times
// 16, as a panel of 8 bits has them, and `tile` multiplies by those. Both null: never.
struct Decoder {
  void (*decode)(const uint8_t* panel, int64_t features, uint8_t* to);
  void (*tile)(const Product&);
};
inline constexpr Decoder kNoDecoder{nullptr, nullptr};
inline constexpr int64_t kDecodedRows = 64;           // fewer don't pay for decoding
inline constexpr int64_t kDecodedBytes = 256 * 1024;  // of panels, in the second-level cache

// `unit` is what a product of integers counts: 1/16 where nibbles stand in the high half of a byte.
template <int bits, class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end, float unit, void (*tile_by_panel)(const Product&),
                            const Decoder& decoder) {
  const WeightShape& s = a.shape;
  const Activations x = Activations::at(a.activations, s, a.rows);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int64_t size = panel_bytes<bits>(s), groups = group_count(s), features = padded_features(s);
  const int64_t together = a.rows == 1 ? kPanelsOfRow : 1;
  alignas(64) float
      result[(kMaxTileRows > kPanelsOfRow * kRowsOfPair ? kMaxTileRows : kPanelsOfRow * kRowsOfPair) *
             kPanelColumns<bits>];
  uint8_t* const decoded = static_cast<uint8_t*>(a.scratch);
  const int64_t decoded_size = features * kPanelColumns<bits>;
  const bool decode = decoder.decode != nullptr && decoded != nullptr && decoded_size <= kDecodedBytes &&
                      tiling.first_row(tile_end) - tiling.first_row(tile_begin) >= kDecodedRows;
  const int64_t block = decode ? kDecodedBytes / decoded_size : panel_end - panel_begin;
  for (int64_t begin = panel_begin; begin < panel_end; begin += block) {
    const int64_t end = panel_end - begin < block ? panel_end : begin + block;
    for (int64_t panel = begin; decode && panel < end; ++panel) {
      decoder.decode(static_cast<const uint8_t*>(a.weight) + panel * size, features,
                     decoded + (panel - begin) * decoded_size);
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
                      decode,
                      together,
                      size,
                      result};
      for (int64_t panel = begin; panel < end; panel += together) {
        const uint8_t* packed = static_cast<const uint8_t*>(a.weight) + panel * size;
        product.weights = decode ? decoded + (panel - begin) * decoded_size : packed;
        product.scales = reinterpret_cast<const float*>(packed + weight_bytes<bits>(s));
        if (s.zero_points) product.zeros = product.scales + groups * kPanelColumns<bits>;
        if (end - panel < together) product.panels = end - panel;
        if (decode) {
          decoder.tile(product);
        } else {
          tile_by_panel(product);
        }
        for (int64_t j = 0; j < product.panels; ++j) {
          store_panel<bits, T>(a, result + j * rows * kPanelColumns<bits>, x.scales, unit, first, real,
                               panel + j);
        }
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
                                      kPanelColumns<bits>,                                                   \
                                      op##_panel_bytes,                                                      \
                                      op##_activation_bytes,                                                 \
                                      op##_quantize_##suffix,                                                \
                                      op##_gather,                                                           \
                                      op##_tiles,                                                            \
                                      op##_multiply_##suffix,                                                \
                                      (decoder).decode == nullptr ? 0 : kDecodedBytes,                       \
                                      kDecodedRows};

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
