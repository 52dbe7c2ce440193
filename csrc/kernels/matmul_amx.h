// Quantized products with the tiles of AMX (amx_tiles.h): TDPBSSD adds the product of a tile of 16 rows by 64
// elements and one of 16 times four elements by 16 columns to a tile of 16 by 16 integers. A panel lies as
// the second tile wants it. Few rows are left to VPDPBUSD. Sums are exact, so both give the same bits.

#pragma once

#ifndef ARMLLM_SECTION
#define ARMLLM_SECTION "armllm.amx"
#endif
#include "kernels/amx_tiles.h"

inline constexpr int64_t kRowChunk = 64, kRowsOfPair = 1, kPanelsOfRow = 4, kFewRows = 8,
                         kMaxTileRows = 4 * kBlock;
inline constexpr int64_t kBlockFeatures = 512;  // of 64 rows, 32 KiB
inline constexpr const WeightLayout& kLayout = kColumns16x4;
constexpr ARMLLM_INLINE int64_t matmul_tile_rows(int, bool) { return kMaxTileRows; }

inline constexpr int64_t kDeep = kRowChunk, kHalf = kWeightStep;  // elements of a tile's rows

#include "kernels/matmul_activations.h"

// The tiles where rows are not few: 0 to 3 sums of blocks of rows, 4 and 5 rows and columns, 6 and 7 half as
// many elements of these.
#define ARMLLM_PREPARED
class Prepared {
 public:
  explicit ARMLLM_MEMBER Prepared(int64_t rows) : has_tiles_(!are_few(rows)) {
    if (!has_tiles_) return;
    constexpr int64_t kHeight[] = {16, 16, 16, 16, 16, kDeep / 4, 16, kHalf / 4};
    constexpr int64_t kWidth[] = {64, 64, 64, 64, kDeep, 64, kHalf, 64};
    TileShapes shapes;
    for (int i = 0; i < 8; ++i) {
      shapes.rows[i] = static_cast<uint8_t>(kHeight[i]);
      shapes.column_bytes[i] = static_cast<uint16_t>(kWidth[i]);
    }
    load_shapes(shapes);
  }
  ARMLLM_MEMBER ~Prepared() {
    if (has_tiles_) _tile_release();
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

 private:
  bool has_tiles_;
};

#include "kernels/matmul.h"
#include "kernels/matmul_avx512_tiles.h"

// 4 bits of `elements` of each column become 8.
ARMLLM_INLINE void widen(const uint8_t* packed, int64_t elements, int8_t* to) {
  const __m512i nibble = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  const auto put = [&](__m512i bytes, int64_t i) ARMLLM_LAMBDA {  // ((bytes & 15) ^ 8) - 8
    const __m512i biased = _mm512_ternarylogic_epi32(bytes, eight, nibble, 0x28);
    _mm512_storeu_si512(to + i, _mm512_sub_epi8(biased, eight));
  };
  for (int64_t i = 0; i < 16 * elements; i += 128, packed += 64) {
    const __m512i both = _mm512_loadu_si512(packed);
    put(both, i);
    put(_mm512_srli_epi16(both, 4), i + 64);
  }
}

// Adds the products of 64, or 32, elements of N blocks of rows by a panel. GCC 12 doesn't know that TILELOADD
// reads memory, and takes a tile's number from the source's text, so it can't be a parameter.
template <int N>
ARMLLM_INLINE void add_deep(const int8_t* rows, int64_t stride, const int8_t* columns) {
  __asm__ volatile("" ::: "memory");
  _tile_loadd(5, columns, 64);
  _tile_loadd(4, rows, stride);
  _tile_dpbssd(0, 4, 5);
  if constexpr (N > 1) {
    _tile_loadd(4, rows + kBlock * stride, stride);
    _tile_dpbssd(1, 4, 5);
  }
  if constexpr (N > 2) {
    _tile_loadd(4, rows + 2 * kBlock * stride, stride);
    _tile_dpbssd(2, 4, 5);
  }
  if constexpr (N > 3) {
    _tile_loadd(4, rows + 3 * kBlock * stride, stride);
    _tile_dpbssd(3, 4, 5);
  }
}
template <int N>
ARMLLM_INLINE void add_half(const int8_t* rows, int64_t stride, const int8_t* columns) {
  __asm__ volatile("" ::: "memory");
  _tile_loadd(7, columns, 64);
  _tile_loadd(6, rows, stride);
  _tile_dpbssd(0, 6, 7);
  if constexpr (N > 1) {
    _tile_loadd(6, rows + kBlock * stride, stride);
    _tile_dpbssd(1, 6, 7);
  }
  if constexpr (N > 2) {
    _tile_loadd(6, rows + 2 * kBlock * stride, stride);
    _tile_dpbssd(2, 6, 7);
  }
  if constexpr (N > 3) {
    _tile_loadd(6, rows + 3 * kBlock * stride, stride);
    _tile_dpbssd(3, 6, 7);
  }
}

// The tiles of sums from and to memory, or zeros.
template <int N>
ARMLLM_INLINE void load_sums(const void* from) {
  __asm__ volatile("" ::: "memory");
  const char* at = static_cast<const char*>(from);
  _tile_loadd(0, at, 64);
  if constexpr (N > 1) _tile_loadd(1, at + 1024, 64);
  if constexpr (N > 2) _tile_loadd(2, at + 2048, 64);
  if constexpr (N > 3) _tile_loadd(3, at + 3072, 64);
}
template <int N>
ARMLLM_INLINE void store_sums(void* to) {
  char* at = static_cast<char*>(to);
  _tile_stored(0, at, 64);
  if constexpr (N > 1) _tile_stored(1, at + 1024, 64);
  if constexpr (N > 2) _tile_stored(2, at + 2048, 64);
  if constexpr (N > 3) _tile_stored(3, at + 3072, 64);
  __asm__ volatile("" ::: "memory");
}
template <int N>
ARMLLM_INLINE void clear_sums() {
  _tile_zero(0);
  if constexpr (N > 1) _tile_zero(1);
  if constexpr (N > 2) _tile_zero(2);
  if constexpr (N > 3) _tile_zero(3);
}

// What one pair of tiles takes of the elements from `k` to before `end`.
ARMLLM_INLINE int64_t elements_at(int64_t k, int64_t end) {
  return k % kDeep == 0 && end - k >= kDeep ? kDeep : kHalf;
}

// Elements of a panel in the order that they are asked for, as 8 bits. packed: whether they have 4. Those are
// widened one turn ahead: a tile that is loaded right after its stores waits for them.
template <bool packed>
class Columns {
 public:
  explicit ARMLLM_MEMBER Columns(const Product& p) : p_(p) {
    if constexpr (packed) widen(p.weights + p.begin * 8, elements_at(p.begin, end_of(p.begin)), widened_[0]);
  }
  // The `elements` from k on. The next call asks for what is behind them.
  ARMLLM_MEMBER const int8_t* at(int64_t k, int64_t elements) {
    const uint8_t* const w = p_.weights + k * (packed ? 8 : 16);
    for (int64_t i = 0; i < (packed ? 512 : 1024); i += 64) _mm_prefetch(w + 2048 + i, _MM_HINT_T0);
    if constexpr (!packed) return reinterpret_cast<const int8_t*>(w);
    const int8_t* const now = widened_[turn_];
    turn_ = 1 - turn_;
    const int64_t next = k + elements;
    __asm__ volatile("" ::: "memory");  // the tiles of the elements before are loaded
    if (next < p_.end) widen(p_.weights + next * 8, elements_at(next, end_of(next)), widened_[turn_]);
    return now;
  }

 private:
  ARMLLM_MEMBER int64_t end_of(int64_t k) const {
    return p_.grouped ? (k / p_.group + 1) * p_.group : p_.end;
  }
  const Product& p_;
  int turn_ = 0;
  alignas(64) int8_t widened_[packed ? 2 : 1][packed ? kDeep * 16 : 1];
};

// Adds the elements from `k` to before `end`; calls `beside` while the tiles compute.
template <bool packed, int N, class Beside>
ARMLLM_INLINE void add_elements(const Product& p, Columns<packed>& columns, int64_t k, int64_t end,
                                const Beside& beside) {
  while (k < end) {
    const Place place = place_of(k, p.rows, p.features);
    const int64_t elements = elements_at(k, end);
    const int8_t* const now = columns.at(k, elements);
    if (elements == kDeep) {
      add_deep<N>(p.q + place.first, place.stride, now);
    } else {
      add_half<N>(p.q + place.first, place.stride, now);
    }
    beside();
    k += elements;
  }
}

// out = before + sums * scales, some rows at a time; `before` may be null.
struct Scaling {
  const int32_t* sums;
  const float *scales, *before;
  float* out;
  int64_t rows;  // those left
  ARMLLM_MEMBER void take(int64_t count) {
    if (count > rows) count = rows;
    if (count == 0) return;
    const __m512 scale = _mm512_loadu_ps(scales);
    for (int64_t i = 0; i < count * 16; i += 16) {
      const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums + i));
      const __m512 more = before == nullptr ? _mm512_setzero_ps() : _mm512_load_ps(before + i);
      _mm512_store_ps(out + i, _mm512_fmadd_ps(sum, scale, more));
    }
    sums += count * 16;
    out += count * 16;
    if (before != nullptr) before += count * 16;
    rows -= count;
  }
};

// N blocks of rows, of which the last may have rows that nobody wants. A group's sums are scaled while the
// tiles compute the next group.
template <bool packed, int N>
ARMLLM_INLINE void multiply_blocks(const Product& p) {
  alignas(64) int32_t sums[2][N * kBlock * 16];
  Columns<packed> columns(p);
  if (!p.grouped) {
    if (p.begin == 0) {
      clear_sums<N>();
    } else {
      load_sums<N>(p.waiting);
    }
    add_elements<packed, N>(p, columns, p.begin, p.end, [] {});
    if (p.end < p.features) return store_sums<N>(p.waiting);
    store_sums<N>(sums[0]);
    return Scaling{sums[0], p.scales, nullptr, p.out, p.rows}.take(p.rows);
  }
  const float* before = p.begin == 0 ? nullptr : p.waiting;
  float* const out = p.end < p.features ? p.waiting : p.out;
  const int64_t turns = (p.group + kDeep - 1) / kDeep, rows_of_turn = (p.rows + turns - 1) / turns;
  Scaling last{};
  for (int64_t k = p.begin, turn = 0; k < p.end; k += p.group, turn = 1 - turn) {
    clear_sums<N>();
    add_elements<packed, N>(p, columns, k, k + p.group, [&]() ARMLLM_LAMBDA { last.take(rows_of_turn); });
    last.take(last.rows);
    store_sums<N>(sums[turn]);
    last = {sums[turn], p.scales + k / p.group * 16, before, out, p.rows};
    before = out;
  }
  last.take(last.rows);
}

template <int bits, bool packed>
ARMLLM_INLINE void amx_tile(const Product& p) {
  if constexpr (packed == (bits == 4)) {  // few rows are not decoded
    if (are_few(p.rows)) return vnni_tile<bits, kFewRows>(p);
  }
  if (p.rows <= kBlock) {
    multiply_blocks<packed, 1>(p);
  } else if (p.rows <= 2 * kBlock) {
    multiply_blocks<packed, 2>(p);
  } else if (p.rows <= 3 * kBlock) {
    multiply_blocks<packed, 3>(p);
  } else {
    multiply_blocks<packed, 4>(p);
  }
  if (p.end == p.features) add_zero_points<bits>(p, 1.0f);
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { amx_tile<8, false>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { amx_tile<4, true>(p); }
static ARMLLM_ENTRY void decoded_tile(const Product& p) { amx_tile<4, false>(p); }
static ARMLLM_ENTRY void decode_panel(const uint8_t* panel, int64_t features, uint8_t* to) {
  widen(panel, features, reinterpret_cast<int8_t*>(to));
}
inline constexpr Decoder kDecoder{decode_panel, decoded_tile};

// A block of 16 rows is read where a tile has fewer.
template <int>
ARMLLM_INLINE int64_t bytes_behind(const WeightShape&, int64_t rows) {
  return are_few(rows) ? 0 : kBlock * kDeep;
}

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, kNoDecoder, bytes_behind, nothing_more)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 1.0f, w4a8_tile, kDecoder, bytes_behind, nothing_more)
