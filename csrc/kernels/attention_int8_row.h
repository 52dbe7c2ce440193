// One pair of rows on an int8 cache by SMMLA, included by attention_int8.h. Loads are the limit: so that of
// the rows, and one of an address, serve sixteen vectors of the cache or more. A load with a constant offset
// takes one slot, LDP no fewer than two; compilers would load far ahead and spill.

#pragma once

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

// The logits of two times sixteen keys.
ARMLLM_INLINE void logits_of_pair(const Scratch& s, const int8_t* const* keys, const float* const* scales,
                                  int64_t head_dim, float* logits) {
  Sums sums[kCellsOfOne];
  const int8_t* cell[kCellsOfOne];
  ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c) {
    sums[c] = no_sums();
    cell[c] = keys[c / 4] + c % 4 * 4 * head_dim;
  }
  const int8_t* query = s.query;
  for (const int8_t* end = query + 2 * head_dim; query < end; query += 16) {
    ARMLLM_LOOP("logits", 2);
    const int8x16_t rows = vld1q_s8(query);
    ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c)
      add_next_cell(sums[c], rows, cell[c]);
  }
  store_logits(s, 0, sums, scales, logits);
}

// values = values * factor + weights . values of the cache for one row. Groups of eight tokens are two by two
// side by side, with weights of 0 behind the last token.
ARMLLM_INLINE void values_of_row(const Scratch& s, int64_t row, const int8_t* const* groups,
                                 int64_t num_groups, int64_t d, int64_t head_dim, float* values) {
  Sums sums[kCellsOfOne];
  ARMLLM_UNROLL for (int c = 0; c < kCellsOfOne; ++c)
    sums[c] = no_sums();
  const int8_t *weights = s.weights + row * 2 * kChunk, *next = groups[0];
  for (int64_t g = 0; g < num_groups; g += 2) {
    ARMLLM_LOOP("values", 1);
    const int8_t* cells = next + 8 * d;
    next = groups[g + 2];
    const int8x16_t first = vld1q_s8(weights + 16 * g), second = vld1q_s8(weights + 16 * g + 16);
    add_cells(sums, first, cells);
    add_cells(sums, second, cells + 8 * head_dim);
  }
  store_values(s, row, sums, d, head_dim, values);
}
