// Products of int8 for attention: two rows of eight integers times a cell, four columns of eight integers,
// added to sums in int32. Each target has its own; kRun says how a cell lies in memory, [8 / kRun][4][kRun].
//
// kPairs and kCells: how many pairs of rows and how many cells a register tile has.

#pragma once

#include "simd/primitives.h"

namespace int8_cache {

inline constexpr int64_t kCell = 32;

typedef int32_t Ints __attribute__((vector_size(16)));
typedef float Floats __attribute__((vector_size(16)));

#if defined(ARMLLM_INT8_SMMLA)

inline constexpr int64_t kRun = 8;
inline constexpr int kPairs = 3, kCells = 4;

struct Sums {
  int32x4_t half[2];  // two rows by two columns
};
ARMLLM_INLINE Sums no_sums() { return {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }
ARMLLM_INLINE void add_products(Sums& sums, int8x16_t rows, const int8x16_t (&cell)[2]) {
  sums.half[0] = vmmlaq_s32(sums.half[0], rows, cell[0]);
  sums.half[1] = vmmlaq_s32(sums.half[1], rows, cell[1]);
}
ARMLLM_INLINE Ints upper(const Sums& s) {
  return vcombine_s32(vget_low_s32(s.half[0]), vget_low_s32(s.half[1]));
}
ARMLLM_INLINE Ints lower(const Sums& s) {
  return vcombine_s32(vget_high_s32(s.half[0]), vget_high_s32(s.half[1]));
}

#elif defined(ARMLLM_INT8_SDOT)

inline constexpr int64_t kRun = 4;
inline constexpr int kPairs = 3, kCells = 4;

struct Sums {
  int32x4_t row[2];
};
ARMLLM_INLINE Sums no_sums() { return {{vdupq_n_s32(0), vdupq_n_s32(0)}}; }
ARMLLM_INLINE void add_products(Sums& sums, int8x16_t rows, const int8x16_t (&cell)[2]) {
  sums.row[0] = vdotq_laneq_s32(sums.row[0], cell[0], rows, 0);
  sums.row[1] = vdotq_laneq_s32(sums.row[1], cell[0], rows, 2);
  sums.row[0] = vdotq_laneq_s32(sums.row[0], cell[1], rows, 1);
  sums.row[1] = vdotq_laneq_s32(sums.row[1], cell[1], rows, 3);
}
ARMLLM_INLINE Ints upper(const Sums& s) { return s.row[0]; }
ARMLLM_INLINE Ints lower(const Sums& s) { return s.row[1]; }

#elif ARMLLM_LANES == 4

// SMULL in Armv8.0, SADALP to add neighbors: no product of two numbers in [-127, 128] needs more than 16
// bits.
inline constexpr int64_t kRun = 8;
inline constexpr int kPairs = 1, kCells = 2;

struct Sums {
  int32x4_t part[2][4];  // row, column
};
ARMLLM_INLINE Sums no_sums() {
  Sums s;
  ARMLLM_UNROLL for (int i = 0; i < 8; ++i)
    s.part[i / 4][i % 4] = vdupq_n_s32(0);
  return s;
}
ARMLLM_INLINE void add_products(Sums& sums, int8x16_t rows, const int8x16_t (&cell)[2]) {
  const int8x8_t row[2] = {vget_low_s8(rows), vget_high_s8(rows)};
  ARMLLM_UNROLL for (int r = 0; r < 2; ++r) {
    ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
      int32x4_t(&part)[4] = sums.part[r];
      part[2 * i] = vpadalq_s16(part[2 * i], vmull_s8(vget_low_s8(cell[i]), row[r]));
      part[2 * i + 1] = vpadalq_s16(part[2 * i + 1], vmull_s8(vget_high_s8(cell[i]), row[r]));
    }
  }
}
ARMLLM_INLINE Ints all_columns(const int32x4_t (&part)[4]) {
  return vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3]));
}
ARMLLM_INLINE Ints upper(const Sums& s) { return all_columns(s.part[0]); }
ARMLLM_INLINE Ints lower(const Sums& s) { return all_columns(s.part[1]); }

#else

inline constexpr int64_t kRun = 8;
inline constexpr int kPairs = 1, kCells = 2;

#if ARMLLM_LANES >= 8
struct Sums {
  __m256i column[4];  // four parts of the upper row's sum, then of the lower one's
};
ARMLLM_INLINE Sums no_sums() {
  const __m256i none = _mm256_setzero_si256();
  return {{none, none, none, none}};
}
ARMLLM_INLINE void add_products(Sums& sums, const int8_t* rows, const int8_t* cell) {
  const __m256i both = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rows)));
  ARMLLM_UNROLL for (int i = 0; i < 4; ++i) {
    const __m128i column = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(cell + 8 * i));
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(column));
    sums.column[i] = _mm256_add_epi32(sums.column[i], _mm256_madd_epi16(both, twice));
  }
}
ARMLLM_INLINE __m256i all_columns(const Sums& s) {
  return _mm256_hadd_epi32(_mm256_hadd_epi32(s.column[0], s.column[1]),
                           _mm256_hadd_epi32(s.column[2], s.column[3]));
}
ARMLLM_INLINE Ints upper(const Sums& s) { return (Ints)_mm256_castsi256_si128(all_columns(s)); }
ARMLLM_INLINE Ints lower(const Sums& s) { return (Ints)_mm256_extracti128_si256(all_columns(s), 1); }
#else
struct Sums {
  Ints row[2];
};
ARMLLM_INLINE Sums no_sums() { return {}; }
ARMLLM_INLINE void add_products(Sums& sums, const int8_t* rows, const int8_t* cell) {
  for (int i = 0; i < 32; ++i) {
    sums.row[0][i / 8] += rows[i % 8] * cell[i];
    sums.row[1][i / 8] += rows[8 + i % 8] * cell[i];
  }
}
ARMLLM_INLINE Ints upper(const Sums& s) { return s.row[0]; }
ARMLLM_INLINE Ints lower(const Sums& s) { return s.row[1]; }
#endif

#endif

#if defined(ARMLLM_INT8_SMMLA)
// One pair of rows: loads are the limit. So that of the rows, and one of an address, serve sixteen vectors of
// the cache or more. A load with a constant offset takes one slot, LDP no fewer than two; compilers would
// load far ahead and spill.
inline constexpr int kCellsOfOne = 8;

ARMLLM_INLINE void add_next_cell(Sums& sums, int8x16_t rows, const int8_t*& cell) {
  int8x16_t x, y;
  __asm__(
      "ldr %q[x], [%[cell]]\n\t"
      "ldr %q[y], [%[cell], #16]\n\t"
      "add %[cell], %[cell], #32\n\t"
      "smmla %[first].4s, %[rows].16b, %[x].16b\n\t"
      "smmla %[second].4s, %[rows].16b, %[y].16b"
      : [first] "+w"(sums.half[0]), [second] "+w"(sums.half[1]), [cell] "+r"(cell), [x] "=&w"(x), [y] "=&w"(y)
      : [rows] "w"(rows), "m"(*reinterpret_cast<const int8_t(*)[kCell]>(cell)));
}

// C cells side by side.
template <int C>
ARMLLM_INLINE void add_cells(Sums (&sums)[C], int8x16_t rows, const int8_t* cells) {
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    int8x16_t x, y;
    __asm__(
        "ldr %q[x], [%[cells], %[offset]]\n\t"
        "ldr %q[y], [%[cells], %[offset] + 16]\n\t"
        "smmla %[first].4s, %[rows].16b, %[x].16b\n\t"
        "smmla %[second].4s, %[rows].16b, %[y].16b"
        : [first] "+w"(sums[c].half[0]), [second] "+w"(sums[c].half[1]), [x] "=&w"(x), [y] "=&w"(y)
        : [cells] "r"(cells), [offset] "i"(kCell * c), [rows] "w"(rows),
          "m"(*reinterpret_cast<const int8_t(*)[kCell * C]>(cells)));
  }
}
#endif

#if ARMLLM_LANES == 4
// P pairs of rows, `row_stride` bytes apart, times C cells, `cell_stride` bytes apart.
template <int P, int C>
ARMLLM_INLINE void add_step(Sums (&sums)[P][C], const int8_t* rows, int64_t row_stride, const int8_t* cells,
                            int64_t cell_stride) {
  int8x16_t row[P];
  ARMLLM_UNROLL for (int p = 0; p < P; ++p)
    row[p] = vld1q_s8(rows + p * row_stride);
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    const int8x16_t cell[2] = {vld1q_s8(cells + c * cell_stride), vld1q_s8(cells + c * cell_stride + 16)};
    ARMLLM_UNROLL for (int p = 0; p < P; ++p)
      add_products(sums[p][c], row[p], cell);
  }
}
ARMLLM_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
#else
template <int P, int C>
ARMLLM_INLINE void add_step(Sums (&sums)[P][C], const int8_t* rows, int64_t row_stride, const int8_t* cells,
                            int64_t cell_stride) {
  ARMLLM_UNROLL for (int c = 0; c < C; ++c) {
    ARMLLM_UNROLL for (int p = 0; p < P; ++p)
      add_products(sums[p][c], rows + p * row_stride, cells + c * cell_stride);
  }
}
ARMLLM_INLINE Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

ARMLLM_INLINE Floats load_floats(const float* p) {
  Floats x;
  memcpy(&x, p, sizeof x);
  return x;
}
ARMLLM_INLINE void store_floats(float* p, Floats x) { memcpy(p, &x, sizeof x); }
ARMLLM_INLINE Floats to_floats(Ints x) { return __builtin_convertvector(x, Floats); }
ARMLLM_INLINE Floats splat_floats(float x) { return x - Floats{}; }

}  // namespace int8_cache
