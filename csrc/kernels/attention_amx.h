// Attention on a bfloat16 cache with the tiles of AMX (Intel SDM volume 1, chapter 18): TDPBF16PS adds the
// product of a tile of 16 rows by 32 elements and one of 16 pairs of elements by 16 columns to a tile of 16
// by 16 floats. So keys lie in the cache in panels of 16 tokens, [block_size / 16][head_dim / 2][16][2], and
// values as pairs of tokens, [block_size / 2][value_dim][2]: both are loaded as they lie. Products are exact,
// sums are float; the softmax is in float, its result is rounded to bfloat16 before it multiplies the values.
// Subnormal numbers count as zero.

namespace tiles {

// All keys of a split at once. Rows of logits are a little longer, so that they fall into different sets of
// the cache.
inline constexpr int64_t kChunk = 544, kTileRows = 32, kBlock = 16, kDepth = 32;
static_assert(kChunk >= kAttentionSplit, "no sum is ever rescaled");

ARMLLM_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
// Value vectors are padded with zeros to whole columns of tiles.
ARMLLM_INLINE int64_t value_dim(const KvCacheShape& shape) { return round_up(shape.head_dim, kBlock); }

ARMLLM_INLINE void kv_cache_layout(const KvCacheShape& shape, KvCacheLayout& layout) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(bfloat16));
  layout.value_offset_bytes = shape.block_size * shape.head_dim * kBytes;
  layout.head_stride_bytes = layout.value_offset_bytes + shape.block_size * value_dim(shape) * kBytes;
  layout.scale_offset_bytes = 0;
  layout.block_bytes = shape.num_kv_heads * layout.head_stride_bytes;
}

ARMLLM_INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1);
}

ARMLLM_INLINE void write_kv_cache(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size, columns = value_dim(a.shape);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t token = unit / a.shape.num_kv_heads;
    const int64_t head = unit % a.shape.num_kv_heads;
    const int64_t slot = a.slot_mapping[token];
    if (slot < 0) continue;
    char* base = static_cast<char*>(a.cache) + slot / block_size * a.layout.block_bytes +
                 head * a.layout.head_stride_bytes;
    const int64_t offset = slot % block_size;
    const bfloat16* key =
        static_cast<const bfloat16*>(a.key) + token * a.key_token_stride + head * a.key_head_stride;
    const bfloat16* value =
        static_cast<const bfloat16*>(a.value) + token * a.value_token_stride + head * a.value_head_stride;
    bfloat16* keys =
        reinterpret_cast<bfloat16*>(base) + offset / kBlock * kBlock * head_dim + offset % kBlock * 2;
    for (int64_t d = 0; d < head_dim; d += 2) memcpy(keys + d * kBlock, key + d, 2 * sizeof(bfloat16));
    bfloat16* values =
        reinterpret_cast<bfloat16*>(base + a.layout.value_offset_bytes) + offset / 2 * 2 * columns;
    for (int64_t d = 0; d < head_dim; d += kBlock) {
      const __m256i x = _mm256_maskz_loadu_epi16(first_lanes(head_dim - d), value + d);
      const __m512i wide = _mm512_cvtepu16_epi32(x);
      if (offset % 2 == 0) {
        _mm512_mask_storeu_epi16(values + 2 * d, 0x55555555, wide);
      } else {
        _mm512_mask_storeu_epi16(values + 2 * d, 0xaaaaaaaa, _mm512_slli_epi32(wide, 16));
      }
    }
  }
}

struct Scratch {
  float* logits;          // [kTileRows, kChunk]
  float* values;          // [kTileRows, value_dim]
  float* factor;          // [kTileRows]
  bfloat16* query;        // [kTileRows, query_dim]
  bfloat16* weights;      // [kTileRows, kChunk]
  bfloat16* last_values;  // [kDepth / 2, value_dim, 2]: the last group of tokens, zero behind the last token
  int64_t query_dim, value_dim;
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  const int64_t columns = value_dim(shape), query_dim = round_up(shape.head_dim, kDepth);
  return 4 * kTileRows * (kChunk + columns + 1) + 2 * (kTileRows * (query_dim + kChunk) + kDepth * columns);
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  Scratch s;
  s.value_dim = value_dim(shape);
  s.query_dim = round_up(shape.head_dim, kDepth);
  s.logits = static_cast<float*>(memory);
  s.values = s.logits + kTileRows * kChunk;
  s.factor = s.values + kTileRows * s.value_dim;
  s.query = reinterpret_cast<bfloat16*>(s.factor + kTileRows);
  s.weights = s.query + kTileRows * s.query_dim;
  s.last_values = s.weights + kTileRows * kChunk;
  return s;
}

// Tiles 0 to 3 are sums, 4 and 5 their factors of `depth` elements, 6 and 7 those of the `rest` that is
// shorter.
ARMLLM_INLINE void configure(int64_t rows, int64_t depth, int64_t rest) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
  } shape;
  const auto set = [&](int tile, int64_t tile_rows, int64_t bytes) ARMLLM_LAMBDA {
    shape.rows[tile] = static_cast<uint8_t>(tile_rows);
    shape.column_bytes[tile] = static_cast<uint16_t>(bytes);
  };
  for (int i = 0; i < 4; ++i) set(i, rows, 4 * kBlock);
  set(4, rows, 2 * depth);
  set(5, depth / 2, 4 * kBlock);
  if (rest > 0) {
    set(6, rows, 2 * rest);
    set(7, rest / 2, 4 * kBlock);
  }
  // GCC 12 doesn't know that configuration and tiles are loaded from memory.
  __asm__ volatile("" : : "r"(&shape) : "memory");
  _tile_loadconfig(&shape);
}

// The loops below, written out: tiles have no index.
#define ARMLLM_TILES(N, each)       \
  {                                 \
    each(0);                        \
    if constexpr ((N) > 1) each(1); \
    if constexpr ((N) > 2) each(2); \
    if constexpr ((N) > 3) each(3); \
  }

// logits of a block of rows and the keys of N panels.
template <int N>
ARMLLM_INLINE void logits_tiles(const Scratch& s, int64_t row, const bfloat16* const* panels,
                                int64_t head_dim, float* logits) {
  const bfloat16* query = s.query + row * s.query_dim;
  const int64_t stride = 2 * s.query_dim;
#define ARMLLM_EACH(i) _tile_zero(i)
  ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
  int64_t d = 0;
  for (; d + kDepth <= head_dim; d += kDepth) {
    _tile_loadd(4, query + d, stride);
#define ARMLLM_EACH(i)                                \
  _tile_loadd(5, panels[i] + d * kBlock, 4 * kBlock); \
  _tile_dpbf16ps(i, 4, 5)
    ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
  }
  if (d < head_dim) {
    _tile_loadd(6, query + d, stride);
#define ARMLLM_EACH(i)                                \
  _tile_loadd(7, panels[i] + d * kBlock, 4 * kBlock); \
  _tile_dpbf16ps(i, 6, 7)
    ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
  }
#define ARMLLM_EACH(i) _tile_stored(i, logits + i * kBlock, 4 * kChunk)
  ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
}

// values = weights . values of the cache, for a block of rows and N blocks of columns.
template <int N>
ARMLLM_INLINE void values_tiles(const Scratch& s, int64_t row, const bfloat16* const* groups,
                                int64_t num_groups, int64_t group, int64_t column) {
  const bfloat16* weights = s.weights + row * kChunk;
  float* values = s.values + row * s.value_dim + column;
#define ARMLLM_EACH(i) _tile_zero(i)
  ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
  for (int64_t g = 0; g < num_groups; ++g) {
    const bfloat16* x = groups[g] + 2 * column;
    _tile_loadd(4, weights + g * group, 2 * kChunk);
#define ARMLLM_EACH(i)                                 \
  _tile_loadd(5, x + 2 * i * kBlock, 4 * s.value_dim); \
  _tile_dpbf16ps(i, 4, 5)
    ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
  }
#define ARMLLM_EACH(i) _tile_stored(i, values + i * kBlock, 4 * s.value_dim)
  ARMLLM_TILES(N, ARMLLM_EACH)
#undef ARMLLM_EACH
}
#undef ARMLLM_TILES

template <int N>
struct Number {
  static constexpr int value = N;
};
// Four at a time, then what is left; `each` gets a constant and where it begins.
template <class Each>
ARMLLM_INLINE void by_fours(int64_t n, const Each& each) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) each(Number<4>{}, i);
  if (n - i == 3) each(Number<3>{}, i);
  if (n - i == 2) each(Number<2>{}, i);
  if (n - i == 1) each(Number<1>{}, i);
}

// The first n tokens of a group, and zeros for the others.
ARMLLM_INLINE void copy_tokens(const Scratch& s, const bfloat16* from, int64_t n, int64_t group) {
  for (int64_t t = 0; t < group; t += 2) {
    const __mmask32 there = t + 1 < n ? 0xffffffff : t < n ? 0x55555555 : 0;
    for (int64_t i = t * s.value_dim; i < (t + 2) * s.value_dim; i += 32) {
      _mm512_storeu_si512(s.last_values + i, _mm512_maskz_loadu_epi16(there, from + i));
    }
  }
}

ARMLLM_INLINE bool all_finite(const bfloat16* const* groups, int64_t begin, int64_t end, int64_t elements) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 found = 0;
  for (int64_t g = begin; g < end; ++g) {
    for (int64_t i = 0; i < elements; i += 32) {
      const __m512i x = _mm512_and_si512(_mm512_loadu_si512(groups[g] + i), exponent);
      found |= _mm512_cmpeq_epi16_mask(x, exponent);
    }
  }
  return found == 0;
}

// The values of one row that must not touch what it doesn't see.
ARMLLM_INLINE void seen_values(const Scratch& s, int64_t row, const bfloat16* const* groups, int64_t group,
                               KeyRange seen) {
  for (int64_t d = 0; d < s.value_dim; d += kLanes) {
    Vf acc = zero();
    for (int64_t t = seen.first; t < seen.last; ++t) {
      const bfloat16* pair = groups[t / group] + t % group / 2 * 2 * s.value_dim;
      Vf even, odd;
      load_pairs(pair + 2 * d, even, odd);
      acc = fma(t % 2 == 0 ? even : odd, splat(s.logits[row * kChunk + t]), acc);
    }
    store(s.values + row * s.value_dim + d, acc);
  }
}

// values = weights . values for all rows. A key that some rows don't see has the weight 0 there, which would
// make a NaN of an infinite value: then row by row.
ARMLLM_INLINE void tile_values(const PagedAttentionArgs& a, const AttentionTile& tile, const Scratch& s,
                               const bfloat16* const* groups, int64_t group, int64_t begin, int64_t n) {
  const int64_t rows = tile.row_end - tile.row_begin, num_groups = (n + group - 1) / group;
  const KeyRange common = seen_by_all(a, tile, begin, n);
  const int64_t first = (common.first + group - 1) / group,
                last = common.last == n ? num_groups : common.last / group;
  const int64_t elements = group * s.value_dim;
  if (!all_finite(groups, 0, first, elements) || !all_finite(groups, last, num_groups, elements)) {
    for (int64_t r = 0; r < rows; ++r) {
      seen_values(s, r, groups, group, seen_by(a, tile, tile.row_begin + r, begin, n));
    }
    return;
  }
  configure(rows < kBlock ? rows : kBlock, group, 0);
  for (int64_t r = 0; r < rows; r += kBlock) {
    by_fours(s.value_dim / kBlock, [&](auto number, int64_t c) ARMLLM_LAMBDA {
      values_tiles<decltype(number)::value>(s, r, groups, num_groups, group, c * kBlock);
    });
  }
}

ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  const Scratch s = scratch(a.shape, memory);
  for (int64_t r = 0; r < rows; ++r) {
    const bfloat16* query =
        static_cast<const bfloat16*>(a.query) +
        row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
    memcpy(s.query + r * s.query_dim, query, static_cast<size_t>(head_dim) * sizeof(bfloat16));
  }
  const bfloat16* groups[kChunk / kBlock];
  int64_t group = 0;

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    // A group of tokens lies in one block.
    group = block_size % kDepth == 0 && begin % kDepth == 0 ? kDepth : kBlock;
    const bfloat16* panels[kChunk / kBlock];
    for (int64_t j = 0; j < n; j += kBlock) {
      const char* block = block_of(a, tile, begin + j);
      const int64_t offset = (begin + j) % block_size;
      panels[j / kBlock] = reinterpret_cast<const bfloat16*>(block) + offset * head_dim;
      if (rows < kBlock) {  // they wait for memory
        const char* values = block + a.layout.value_offset_bytes + 2 * offset * s.value_dim;
        for (int64_t i = 0; i < 2 * kBlock * s.value_dim; i += 64) __builtin_prefetch(values + i, 0, 2);
      }
      if (j % group == 0) {
        groups[j / group] =
            reinterpret_cast<const bfloat16*>(block + a.layout.value_offset_bytes) + offset * s.value_dim;
      }
    }
    // What lies behind the last token is anything, a NaN too: 0 * NaN is not 0, so it is replaced.
    if (n % group != 0) {
      const int64_t last = n / group;
      copy_tokens(s, groups[last], n % group, group);
      groups[last] = s.last_values;
    }
    configure(rows < kBlock ? rows : kBlock, kDepth, head_dim % kDepth);
    const Vf scale = splat(logit_scale(a));
    for (int64_t r = 0; r < rows; r += kBlock) {
      float* logits = s.logits + r * kChunk;
      by_fours((n + kBlock - 1) / kBlock, [&](auto number, int64_t p) ARMLLM_LAMBDA {
        logits_tiles<decltype(number)::value>(s, r, panels + p, head_dim, logits + p * kBlock);
      });
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* logits = s.logits + r * kChunk;
      for (int64_t i = 0; i < n; i += kLanes) store(logits + i, mul(load(logits + i), scale));
    }
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = s.logits + r * kChunk;
      bfloat16* to = s.weights + r * kChunk;
      for (int64_t i = 0; i < n; i += 2 * kLanes) {
        const __m512bh both = _mm512_cvtne2ps_pbh((__m512)load(from + i + kLanes), (__m512)load(from + i));
        _mm512_storeu_si512(to + i, (__m512i)both);
      }
    }
    tile_values(a, tile, s, groups, group, begin, n);
  };
  online_softmax<kChunk, kDepth>(a, tile, split, state, s.logits, s.factor, fill, add);
  _tile_release();

  for (int64_t r = 0; r < rows; ++r) {
    memcpy(state.values + r * head_dim, s.values + r * s.value_dim,
           static_cast<size_t>(head_dim) * sizeof(float));
  }
}

}  // namespace tiles
