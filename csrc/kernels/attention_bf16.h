// Attention on a bfloat16 cache with BFMMLA: a 2x4 matrix times the transpose of a 2x4 matrix, added to a 2x2
// matrix of floats. So keys lie in the cache as pairs of tokens, [block_size / 2][head_dim / 4][2][4], and
// values as groups of four tokens, [block_size / 4][head_dim / 2][2][4]: every operand is one aligned load.
// Products are exact, sums are float (rounded to odd inside the instruction); the softmax is in float, its
// result is rounded to bfloat16 before it multiplies the values.
//
// Query rows come in pairs. Twenty-four accumulators, six row pairs by four key pairs and the like, keep four
// BFMMLA per cycle going on Neoverse-V1 and V2 without depending on accumulator forwarding.

#pragma once

#include "kernels/kv_slots.h"
#include "kernels/softmax.h"

namespace mmla {

inline constexpr int64_t kChunk = 96;
inline constexpr int kPairTile = 6, kPairsOfOne = 16;
inline constexpr int64_t kTileRows = 48;

using Pair = bfloat16x8_t;  // two rows of four

ARMLLM_INLINE Pair load_pair(const bfloat16* p) { return vreinterpretq_bf16_u16(vld1q_u16(&p->bits)); }

// How many columns a register tile of `pairs` row pairs has.
static constexpr int columns(int pairs, int limit) {
  const int n = pairs == 6 || pairs == 5 ? 4 : pairs == 4 ? 6 : pairs == 1 ? 16 : 8;
  return n < limit ? n : limit;
}

struct Scratch {
  float* logits;          // [kTileRows, kChunk]
  float* values;          // [kTileRows / 2, head_dim / 2, 2, 2]
  float* factor;          // [kTileRows]
  bfloat16* query;        // [kTileRows / 2, head_dim / 4, 2, 4]
  bfloat16* weights;      // [kTileRows / 2, kChunk / 4, 2, 4]
  bfloat16* last_values;  // [2, head_dim / 2, 2, 4]: the last two groups, zero behind the last token
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  const int64_t floats = kTileRows * (kChunk + shape.head_dim + 1);
  const int64_t halves = kTileRows * (shape.head_dim + kChunk) + 8 * shape.head_dim;
  return (floats * 4 + halves * 2 + 63) / 64 * 64;
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  Scratch s;
  s.logits = static_cast<float*>(memory);
  s.values = s.logits + kTileRows * kChunk;
  s.factor = s.values + kTileRows * shape.head_dim;
  s.query = reinterpret_cast<bfloat16*>(s.factor + kTileRows);
  s.weights = s.query + kTileRows * shape.head_dim;
  s.last_values = s.weights + kTileRows * kChunk;
  return s;
}

ARMLLM_INLINE void write_kv_cache(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {
  const int64_t head_dim = a.shape.head_dim;
  const auto write = [&](char* base, int64_t offset, const bfloat16* key,
                         const bfloat16* value) ARMLLM_LAMBDA {
    bfloat16* keys = reinterpret_cast<bfloat16*>(base) + offset / 2 * 2 * head_dim + offset % 2 * 4;
    for (int64_t d = 0; d < head_dim; d += 4) memcpy(keys + 2 * d, key + d, 4 * sizeof(bfloat16));
    bfloat16* values = reinterpret_cast<bfloat16*>(base + a.layout.value_offset_bytes) +
                       offset / 4 * 4 * head_dim + offset % 4;
    for (int64_t d = 0; d < head_dim; ++d) values[4 * d] = value[d];
  };
  for_each_slot<bfloat16>(a, begin, end, write);
}

// The scaled sums of a tile as rows of logits.
template <int R, int C>
ARMLLM_INLINE void store_logits(const Vf (&acc)[R][C], float scale, float* logits) {
  const Vf s = splat(scale);
  ARMLLM_UNROLL for (int r = 0; r < R; ++r) {
    ARMLLM_UNROLL for (int c = 0; c < C; c += 2) {
      const Vf a = acc[r][c], b = acc[r][c + 1];
      const Vf upper = vcombine_f32(vget_low_f32(a), vget_low_f32(b));
      const Vf lower = vcombine_f32(vget_high_f32(a), vget_high_f32(b));
      store(logits + 2 * r * kChunk + 2 * c, mul(upper, s));
      store(logits + (2 * r + 1) * kChunk + 2 * c, mul(lower, s));
    }
  }
}

// logits of R row pairs and C key pairs, C even; with few accumulators head_dim is summed in two halves.
template <int R, int C>
ARMLLM_INLINE void logits_tile(const bfloat16* query, const bfloat16* const* keys, int64_t head_dim,
                               float scale, float* logits) {
  constexpr int kPhases = R * C <= 8 ? 2 : 1;
  Vf acc[kPhases][R][C];
  ARMLLM_UNROLL for (int p = 0; p < kPhases; ++p) {
    ARMLLM_UNROLL for (int r = 0; r < R; ++r) {
      ARMLLM_UNROLL for (int c = 0; c < C; ++c)
        acc[p][r][c] = zero();
    }
  }
  const bfloat16* k[C];
  ARMLLM_UNROLL for (int c = 0; c < C; ++c)
    k[c] = keys[c];
  for (int64_t d = 0; d < 2 * head_dim; d += 8 * kPhases) {
    ARMLLM_LOOP("logits", 2 * R);
    ARMLLM_UNROLL for (int p = 0; p < kPhases; ++p) {
      Pair q[R];
      ARMLLM_UNROLL for (int r = 0; r < R; ++r)
        q[r] = load_pair(query + r * 2 * head_dim + d + 8 * p);
      ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
        const Pair x = load_pair(k[c] + d + 8 * p);
        ARMLLM_UNROLL for (int r = 0; r < R; ++r)
          acc[p][r][c] = vbfmmlaq_f32(acc[p][r][c], q[r], x);
      }
    }
  }
  ARMLLM_UNROLL for (int p = 1; p < kPhases; ++p) {
    ARMLLM_UNROLL for (int r = 0; r < R; ++r) {
      ARMLLM_UNROLL for (int c = 0; c < C; ++c)
        acc[0][r][c] = add(acc[0][r][c], acc[p][r][c]);
    }
  }
  store_logits(acc[0], scale, logits);
}

// Eight elements of a row pair times those of a key pair, whose address moves on. Alone a load with a
// constant offset takes one slot, so this is the shortest form; compilers would load far ahead and spill.
ARMLLM_INLINE void add_eight(Vf& sum, Pair first, Pair second, const bfloat16*& key) {
  Pair x, y;
  __asm__(
      "ldr %q[x], [%[key]]\n\t"
      "ldr %q[y], [%[key], #16]\n\t"
      "add %[key], %[key], #32\n\t"
      "bfmmla %[sum].4s, %[first].8h, %[x].8h\n\t"
      "bfmmla %[sum].4s, %[second].8h, %[y].8h"
      : [sum] "+w"(sum), [key] "+r"(key), [x] "=&w"(x), [y] "=&w"(y)
      : [first] "w"(first), [second] "w"(second), "m"(*reinterpret_cast<const bfloat16(*)[16]>(key)));
}

// For one row pair loads are the limit, so sixteen key pairs share that of the query.
ARMLLM_INLINE void logits_of_pair(const bfloat16* query, const bfloat16* const* keys, int64_t head_dim,
                                  float scale, float* logits) {
  Vf acc[1][kPairsOfOne];
  const bfloat16* k[kPairsOfOne];
  ARMLLM_UNROLL for (int c = 0; c < kPairsOfOne; ++c) {
    acc[0][c] = zero();
    k[c] = keys[c];
  }
  for (const bfloat16* end = query + 2 * head_dim; query < end; query += 16) {
    ARMLLM_LOOP("logits", 2);
    const Pair first = load_pair(query), second = load_pair(query + 8);
    ARMLLM_UNROLL for (int c = 0; c < kPairsOfOne; ++c)
      add_eight(acc[0][c], first, second, k[c]);
  }
  store_logits(acc, scale, logits);
}

template <int R>
ARMLLM_INLINE void logits_rows(const Scratch& s, int64_t pair, const bfloat16* const* keys, int64_t key_pairs,
                               int64_t head_dim, float scale) {
  constexpr int kColumns = columns(R, 8);
  constexpr int kFew = kColumns % 4 == 0 ? 4 : 2;
  const bfloat16* query = s.query + pair * 2 * head_dim;
  float* logits = s.logits + 2 * pair * kChunk;
  int64_t c = 0;
  if constexpr (R == 1) {
    for (; c + kPairsOfOne <= key_pairs; c += kPairsOfOne) {
      logits_of_pair(query, keys + c, head_dim, scale, logits + 2 * c);
    }
  }
  for (; c + kColumns <= key_pairs; c += kColumns) {
    logits_tile<R, kColumns>(query, keys + c, head_dim, scale, logits + 2 * c);
  }
  for (; c < key_pairs; c += kFew) logits_tile<R, kFew>(query, keys + c, head_dim, scale, logits + 2 * c);
}

// A group of four tokens times a row pair's weights, for C pairs of value elements. LDP would take a slot
// more.
template <int C>
ARMLLM_INLINE void add_group(Vf (&acc)[C], Pair weights, const bfloat16* group) {
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    Pair x;
    __asm__(
        "ldr %q[x], [%[group], %[offset]]\n\t"
        "bfmmla %[sum].4s, %[weights].8h, %[x].8h"
        : [sum] "+w"(acc[c]), [x] "=&w"(x)
        : [group] "r"(group), [offset] "i"(16 * c), [weights] "w"(weights),
          "m"(*reinterpret_cast<const bfloat16(*)[8 * C]>(group)));
  }
}

// values = values * factor + weights . values of the cache, for R row pairs and C pairs of value elements.
template <int R, int C>
ARMLLM_INLINE void values_tile(const Scratch& s, int64_t pair, const bfloat16* const* groups,
                               int64_t num_groups, int64_t column, int64_t head_dim) {
  const bfloat16* weights = s.weights + pair * 2 * kChunk;
  float* values = s.values + (pair * head_dim + 2 * column) * 2;
  Vf acc[R][C];
  ARMLLM_UNROLL for (int r = 0; r < R; ++r) {
    const float* f = s.factor + 2 * (pair + r);
    const Vf factor = vcombine_f32(vdup_n_f32(f[0]), vdup_n_f32(f[1]));
    ARMLLM_UNROLL for (int c = 0; c < C; ++c)
      acc[r][c] = mul(load(values + r * 2 * head_dim + 4 * c), factor);
  }
  int64_t g = 0;
  if constexpr (R == 1) {  // loads are the limit: one address, loaded in advance, serves two groups
    const bfloat16* next = groups[0];
    for (; g + 2 <= num_groups; g += 2) {
      ARMLLM_LOOP("values", 2);
      const bfloat16* group = next + 8 * column;
      next = groups[g + 2];
      const Pair first = load_pair(weights + 8 * g), second = load_pair(weights + 8 * g + 8);
      add_group(acc[0], first, group);
      add_group(acc[0], second, group + 4 * head_dim);
    }
  }
  for (; g < num_groups; ++g) {
    if constexpr (R > 1) {
      ARMLLM_LOOP("values", 2 * R);
    }
    const bfloat16* group = groups[g] + 8 * column;
    Pair w[R];
    ARMLLM_UNROLL for (int r = 0; r < R; ++r)
      w[r] = load_pair(weights + r * 2 * kChunk + 8 * g);
    ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
      const Pair x = load_pair(group + 8 * c);
      ARMLLM_UNROLL for (int r = 0; r < R; ++r)
        acc[r][c] = vbfmmlaq_f32(acc[r][c], w[r], x);
    }
  }
  ARMLLM_UNROLL for (int r = 0; r < R; ++r) {
    ARMLLM_UNROLL for (int c = 0; c < C; ++c)
      store(values + r * 2 * head_dim + 4 * c, acc[r][c]);
  }
}

template <int R>
ARMLLM_INLINE void values_rows(const Scratch& s, int64_t pair, const bfloat16* const* groups,
                               int64_t num_groups, int64_t head_dim) {
  constexpr int kColumns = columns(R, 16);
  constexpr int kFew = kColumns % 4 == 0 ? 4 : 2;
  int64_t c = 0;
  for (; c + kColumns <= head_dim / 2; c += kColumns)
    values_tile<R, kColumns>(s, pair, groups, num_groups, c, head_dim);
  for (; c < head_dim / 2; c += kFew) values_tile<R, kFew>(s, pair, groups, num_groups, c, head_dim);
}

// Row pairs in tiles of kPairTile, the rest in one smaller tile; R counts down to their number.
template <int R>
ARMLLM_INLINE void rest_logits(const Scratch& s, int64_t pair, int64_t pairs, const bfloat16* const* keys,
                               int64_t key_pairs, int64_t head_dim, float scale) {
  if (pairs == R) {
    logits_rows<R>(s, pair, keys, key_pairs, head_dim, scale);
  } else if constexpr (R > 1) {
    rest_logits<R - 1>(s, pair, pairs, keys, key_pairs, head_dim, scale);
  }
}
template <int R>
ARMLLM_INLINE void rest_values(const Scratch& s, int64_t pair, int64_t pairs, const bfloat16* const* groups,
                               int64_t num_groups, int64_t head_dim) {
  if (pairs == R) {
    values_rows<R>(s, pair, groups, num_groups, head_dim);
  } else if constexpr (R > 1) {
    rest_values<R - 1>(s, pair, pairs, groups, num_groups, head_dim);
  }
}

ARMLLM_INLINE bool all_finite(const bfloat16* const* groups, int64_t begin, int64_t end, int64_t head_dim) {
  const uint16x8_t exponent = vdupq_n_u16(0x7f80);
  uint16x8_t found = vdupq_n_u16(0);
  for (int64_t g = begin; g < end; ++g) {
    for (int64_t i = 0; i < 4 * head_dim; i += 8) {
      const uint16x8_t x = vandq_u16(vld1q_u16(&groups[g][i].bits), exponent);
      found = vorrq_u16(found, vceqq_u16(x, exponent));
    }
  }
  return vmaxvq_u16(found) == 0;
}

// The values of one row that must not touch what it doesn't see.
ARMLLM_INLINE void add_seen_values(const Scratch& s, int64_t row, const bfloat16* const* groups,
                                   KeyRange seen, int64_t head_dim) {
  const float* weights = s.logits + row * kChunk;
  for (int64_t d = 0; d < head_dim; ++d) {
    float& value = s.values[row / 2 * 2 * head_dim + d / 2 * 4 + row % 2 * 2 + d % 2];
    value *= s.factor[row];
    for (int64_t t = seen.first; t < seen.last; ++t) {
      const float x = static_cast<float>(vget_lane_f32(
          vreinterpret_f32_u32(vdup_n_u32(static_cast<uint32_t>(groups[t / 4][4 * d + t % 4].bits) << 16)),
          0));
      value += weights[t] * x;
    }
  }
}

// values = values * factor + weights . values for all rows. A key that some rows don't see has the weight 0
// there, which would make a NaN of an infinite value: then row by row.
ARMLLM_INLINE void tile_values(const PagedAttentionArgs& a, const AttentionTile& tile, const Scratch& s,
                               const bfloat16* const* groups, int64_t begin, int64_t n) {
  const int64_t head_dim = a.shape.head_dim, rows = tile.row_end - tile.row_begin, pairs = (rows + 1) / 2;
  const int64_t num_groups = (n + 3) / 4;
  const KeyRange common = seen_by_all(a, tile, begin, n);
  const int64_t first = (common.first + 3) / 4, last = common.last / 4;
  if (all_finite(groups, 0, first, head_dim) &&
      all_finite(groups, common.last == n ? num_groups : last, num_groups, head_dim)) {
    int64_t pair = 0;
    for (; pair + kPairTile < pairs; pair += kPairTile) {
      values_rows<kPairTile>(s, pair, groups, num_groups, head_dim);
    }
    rest_values<kPairTile>(s, pair, pairs - pair, groups, num_groups, head_dim);
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    add_seen_values(s, r, groups, seen_by(a, tile, tile.row_begin + r, begin, n), head_dim);
  }
}

// Two rows side by side in groups of four; a missing second row is zero.
ARMLLM_INLINE void pack_query(const bfloat16* upper, const bfloat16* lower, int64_t head_dim, bfloat16* out) {
  for (int64_t d = 0; d < head_dim; d += 4) {
    const uint16x4_t u = vld1_u16(&upper[d].bits);
    const uint16x4_t l = lower == nullptr ? vdup_n_u16(0) : vld1_u16(&lower[d].bits);
    vst1q_u16(&out[2 * d].bits, vcombine_u16(u, l));
  }
}

ARMLLM_INLINE void pack_weights(const float* upper, const float* lower, int64_t n, bfloat16* out) {
  for (int64_t i = 0; i < n; i += 4) {
    bfloat16x8_t w = vcvtq_low_bf16_f32(load(upper + i));
    if (lower != nullptr) {
      w = vcvtq_high_bf16_f32(w, load(lower + i));
    }
    vst1q_u16(&out[2 * i].bits, vreinterpretq_u16_bf16(w));
  }
}

// What lies behind the last of n tokens is anything, a NaN too: 0 * NaN is not 0, so it is replaced. Two
// groups stay side by side.
ARMLLM_INLINE void replace_last(const Scratch& s, const bfloat16** groups, int64_t n, int64_t head_dim) {
  const int64_t last = n / 4, odd = last % 2, size = 4 * head_dim;
  const bfloat16* from = groups[last];
  bfloat16* to = s.last_values + odd * size;
  for (int64_t i = 0; i < size; ++i) to[i] = i % 4 < n % 4 ? from[i] : bfloat16{0};
  if (odd == 1) memcpy(s.last_values, from - size, static_cast<size_t>(size) * sizeof(bfloat16));
  groups[last - odd] = s.last_values;
  groups[last] = to;
}

ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin, pairs = (rows + 1) / 2;
  const Scratch s = scratch(a.shape, memory);
  const auto query_row = static_cast<const bfloat16*>(a.query);
  for (int64_t r = 0; r < rows; r += 2) {
    const int64_t row = tile.row_begin + r;
    const bfloat16* upper = query_row + row_offset(a, tile, row, a.query_token_stride, a.query_head_stride);
    const bfloat16* lower =
        r + 1 < rows ? query_row + row_offset(a, tile, row + 1, a.query_token_stride, a.query_head_stride)
                     : nullptr;
    pack_query(upper, lower, head_dim, s.query + r * head_dim);
  }
  s.factor[2 * pairs - 1] = 0;
  memset(s.values, 0, static_cast<size_t>(2 * pairs * head_dim) * sizeof(float));
  const bfloat16* groups[kChunk / 4 + 1] = {};  // the last is loaded in advance, and not used

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    const bfloat16* keys[kChunk / 2];
    const int64_t key_pairs = (n + 7) / 8 * 4;
    for (int64_t j = 0; j < 2 * key_pairs; j += 8) {
      const char* block = block_of(a, tile, begin + j);
      const int64_t offset = (begin + j) % block_size * head_dim;
      const bfloat16* k = reinterpret_cast<const bfloat16*>(block) + offset;
      const bfloat16* v = reinterpret_cast<const bfloat16*>(block + a.layout.value_offset_bytes) + offset;
      for (int64_t i = 0; i < 4; ++i) keys[j / 2 + i] = k + i * 2 * head_dim;
      for (int64_t i = 0; i < 2; ++i) groups[j / 4 + i] = v + i * 4 * head_dim;
    }
    if (n % 4 != 0) replace_last(s, groups, n, head_dim);
    int64_t pair = 0;
    for (; pair + kPairTile < pairs; pair += kPairTile) {
      logits_rows<kPairTile>(s, pair, keys, key_pairs, head_dim, logit_scale(a));
    }
    rest_logits<kPairTile>(s, pair, pairs - pair, keys, key_pairs, head_dim, logit_scale(a));
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    for (int64_t r = 0; r < rows; r += 2) {
      const float* upper = s.logits + r * kChunk;
      pack_weights(upper, r + 1 < rows ? upper + kChunk : nullptr, n, s.weights + r * kChunk);
    }
    tile_values(a, tile, s, groups, begin, n);
  };
  online_softmax<kChunk, 4>(a, tile, split, state, s.logits, s.factor, fill, add);

  for (int64_t r = 0; r < rows; ++r) {
    const float* from = s.values + r / 2 * 2 * head_dim + r % 2 * 2;
    float* to = state.values + r * head_dim;
    for (int64_t d = 0; d < head_dim; d += 2) {
      to[d] = from[2 * d];
      to[d + 1] = from[2 * d + 1];
    }
  }
}

}  // namespace mmla
