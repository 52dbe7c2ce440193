// The activations of a quantized product: rows cut into tiles and rounded to 8 bits, and the sums of their
// groups. matmul.h says what a target brings before it includes this.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone: what matmul_smull.h brings
#include "simd/primitives.h"
inline constexpr int64_t kRowChunk = 8, kRowsOfPair = 1, kPanelsOfRow = 1, kFewRows = 1, kMaxTileRows = 4;
inline constexpr int64_t kBlockFeatures = 0;
inline constexpr const WeightLayout& kLayout = kColumns4x8;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }
#endif
#include "kernels/quantize.h"

// Rows of activations are padded with zeros to whole steps, as weights are.
inline constexpr int64_t kStep = kWeightStep;
// Elements of a row that are written at a time.
inline constexpr int64_t kPart = kRowChunk < kStep ? kRowChunk : kStep;

ARMLLM_INLINE int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
ARMLLM_INLINE int64_t padded_features(const WeightShape& s) { return round_up(s.in_features, kStep); }
ARMLLM_INLINE int64_t group_length(const WeightShape& s) {
  return s.group_size == 0 ? padded_features(s) : s.group_size;
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
//   q      per tile [chunks, rows of the tile, kRowChunk], of the last chunk what is left; see place_of
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
    a.bytes += round_up(padded * weight_groups(s) * 4, 64);
    a.scales = reinterpret_cast<float*>(p + a.bytes);
    a.bytes += round_up(padded * 4, 64);
    a.more = p + a.bytes;
    return a;
  }
};

// Where chunks are longer than a step, few rows have short ones, for other instructions.
constexpr ARMLLM_INLINE bool are_few(int64_t rows) { return kRowChunk > kStep && rows <= kFewRows; }

// Where a tile's rows have their elements from k on: the first row, and how far behind it the next one.
struct Place {
  int64_t first, stride;
};
ARMLLM_INLINE Place place_of(int64_t k, int64_t rows, int64_t features) {
  if constexpr (kRowChunk <= kStep) return {k * rows, kRowChunk};
  if (are_few(rows)) return {k / kStep * kStep * rows + k % kStep, kStep};
  const int64_t begin = k / kRowChunk * kRowChunk, left = features - begin;
  return {begin * rows + k % kRowChunk, left < kRowChunk ? left : kRowChunk};
}

// A row of a tile, and where its elements and the sums of its groups go.
struct RowOfTile {
  int8_t* q;  // of the tile
  float* sums;
  int64_t row, rows, features;

  ARMLLM_MEMBER int8_t* chunk(int64_t k) const {
    const Place place = place_of(k, rows, features);
    return q + place.first + row * place.stride;
  }
  ARMLLM_MEMBER float& sum(int64_t group) const { return sums[group * rows + row]; }
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
ARMLLM_INLINE void quantize_row(const T* x, const WeightShape& s, RowScale row, const RowOfTile& to) {
  static_assert(kPart % kLanes == 0 && kStep % kPart == 0, "a vector lies within a part");
  const int64_t length = group_length(s), n = s.in_features;
  const Vf scale = splat(row.scale);
  for (int64_t g = 0; g < weight_groups(s); ++g) {
    Vf sum = zero();
    for (int64_t k = g * length; k < (g + 1) * length; k += kPart) {
      int8_t* chunk = to.chunk(k);
      for (int64_t i = 0; i < kPart; i += kLanes) {
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
    to.sum(g) = reduce_add(sum);
  }
}

// Rows `begin` to `end` of the activations. row_into(row, its place) fills one, or returns a scale that is
// not above 0 for a row of zeros.
template <int bits, class RowInto>
ARMLLM_INLINE void fill_activations(const MatmulArgs& a, int64_t begin, int64_t end, RowInto row_into) {
  const WeightShape& s = a.shape;
  const Activations to = Activations::at(a.activations, s, a.rows);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int64_t groups = weight_groups(s), features = padded_features(s);
  // The last row brings the other of its pair along.
  const int64_t stop = end == a.rows ? round_up(end, kRowsOfPair) : end;
  for (int64_t r = begin; r < stop; ++r) {
    const int64_t tile = tiling.tile_of(r), first = tiling.first_row(tile);
    const RowOfTile row{to.q + first * features, to.sums + first * groups, r - first,
                        tiling.first_row(tile + 1) - first, features};
    to.scales[r] = r < a.rows ? row_into(r, row) : 0.0f;
    if (!(to.scales[r] > 0)) {
      for (int64_t k = 0; k < features; k += kPart) memset(row.chunk(k), 0, kPart);
      for (int64_t g = 0; g < groups; ++g) row.sum(g) = 0;
    }
  }
}

template <int bits, class T>
ARMLLM_INLINE void quantize_activations(const MatmulArgs& a, int64_t begin, int64_t end) {
  fill_activations<bits>(a, begin, end, [&](int64_t r, const RowOfTile& to) __attribute__((always_inline)) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    RowScale row = row_scale(x, a.shape.in_features, false);
    const bool held = a.x_scale > 0 && row.scale > 0;
    if (held) row.scale = a.x_scale;
    if (held) {
      quantize_row<T, true>(x, a.shape, row, to);
    } else if (row.scale > 0) {
      quantize_row<T, false>(x, a.shape, row, to);
    }
    return row.scale;
  });
}

// One row that is int8 already into its place in its tile.
ARMLLM_INLINE void place_row(const int8_t* x, const WeightShape& s, const RowOfTile& to) {
  const int64_t length = group_length(s), n = s.in_features;
  for (int64_t g = 0; g < weight_groups(s); ++g) {
    int32_t sum = 0;
    for (int64_t k = g * length; k < (g + 1) * length; k += kPart) {
      int8_t chunk[kPart] = {};
      if (k + kPart <= n) {
        memcpy(chunk, x + k, kPart);
      } else if (k < n) {
        memcpy(chunk, x + k, static_cast<size_t>(n - k));
      }
      for (int64_t i = 0; i < kPart; ++i) sum += chunk[i];
      memcpy(to.chunk(k), chunk, kPart);
    }
    to.sum(g) = static_cast<float>(sum);
  }
}

template <int bits>
ARMLLM_INLINE void gather_activations(const MatmulArgs& a, const GatherArgs& from, int64_t begin,
                                      int64_t end) {
  fill_activations<bits>(a, begin, end, [&](int64_t r, const RowOfTile& to) __attribute__((always_inline)) {
    const int64_t row = from.ids[r];
    const float scale = from.scales[row];
    const int8_t* x = static_cast<const int8_t*>(from.rows) + row * from.stride;
    if (scale > 0) place_row(x, a.shape, to);
    return scale;
  });
}
