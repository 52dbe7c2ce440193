// Low-rank adapters of a matrix (kernels.h): a few rows of one adapter meet four rows of its A, or four
// vectors of a row of its B. Each product has a separate sum: a result is the same in every tile.

#pragma once

#include "simd/primitives.h"

namespace lora {

inline constexpr int64_t kFactors = 4;  // rows of A of a tile

// Two vectors that will be needed soon, into the second-level cache: what is read of an adapter is short and
// in many streams, which the hardware's own prefetching finds too late, and the first-level cache waits for
// too few lines at a time.
template <class T>
ARMLLM_INLINE void prefetch_two(const T* p) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < 2 * kLanes; i += kLine) __builtin_prefetch(p + i, 0, 2);
}

// A row of those with adapters.
template <class T>
struct Row {
  const T* x;
  T* y;
  float* low;  // of a part
};
template <class T>
ARMLLM_INLINE Row<T> row_at(const LoraArgs& args, int64_t place, int64_t part) {
  const int64_t row = args.rows_by_slot[place];
  return {static_cast<const T*>(args.x) + row * args.x_stride, static_cast<T*>(args.y) + row * args.y_stride,
          args.low + (place * args.parts + part) * args.max_rank};
}

// What rows of A give, as expand takes it: of bfloat16 it has that precision.
template <class T>
ARMLLM_INLINE void put_low(const Row<T>& row, int64_t first, const float* sums, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row.low[first + i] = sums[i];
}
ARMLLM_INLINE void put_low(const Row<bfloat16>& row, int64_t first, const float* sums, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    bfloat16 rounded[kFactors];
    store_some(rounded, load_some(sums + i, count - i), count - i);
    store_some(row.low + first + i, load_some(rounded, count - i), count - i);
  }
}

// Two vectors. Those of bfloat16 hold even and odd elements, which cost less than neighbors.
template <class T>
ARMLLM_INLINE void load_two(const T* p, Vf& first, Vf& second) {
  first = load(p);
  second = load(p + kLanes);
}
ARMLLM_INLINE void load_two(const bfloat16* p, Vf& first, Vf& second) { load_pairs(p, first, second); }
template <class T>
ARMLLM_INLINE void store_two(T* p, Vf first, Vf second) {
  store(p, first);
  store(p + kLanes, second);
}
ARMLLM_INLINE void store_two(bfloat16* p, Vf first, Vf second) { store_pairs(p, first, second); }

// What two vectors of a row of A add to the sums of one row, or of two. The rows are loaded first, and one
// row of A at a time after them: all fits into sixteen registers.
template <int rows, class T>
ARMLLM_INLINE void shrink_two(const T* a, int64_t ahead, Vf first, Vf second, [[maybe_unused]] Vf other_first,
                              [[maybe_unused]] Vf other_second, Vf& sum, [[maybe_unused]] Vf& other_sum) {
  Vf w, v;
  load_two(a, w, v);
  prefetch_two(a + ahead);
  sum = fma(v, second, fma(w, first, sum));
  if constexpr (rows > 1) other_sum = fma(v, other_second, fma(w, other_first, other_sum));
}

// Tiles with FMLA, of two rows at most. SVE's vectors can lie in no array, so the eight sums have names.
template <class T>
struct Tiles {
  static constexpr int kRows = 2;

  // NOLINTBEGIN(readability-function-size): the sums have no array.
  // low[first + i] = a[i] . x for `count` rows of a, up to four. `ahead`: to what is needed next.
  template <int rows>
  ARMLLM_INLINE void shrink(const T* a, int64_t n, int64_t count, int64_t ahead, const Row<T> (&of)[rows],
                            int64_t first) {
    const T *const x = of[0].x, *const other_x = of[rows - 1].x;
    const T *const a0 = a, *const a1 = a + (count > 1 ? n : 0);
    const T *const a2 = a + (count > 2 ? 2 * n : 0), *const a3 = a + (count > 3 ? 3 * n : 0);
    Vf s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero(), t0 = zero(), t1 = zero(), t2 = zero(), t3 = zero();
    int64_t k = 0;
    for (; k + 2 * kLanes <= n; k += 2 * kLanes) {
      ARMLLM_LOOP("shrink", rows);
      Vf x0, x1, y0, y1;
      load_two(x + k, x0, x1);
      load_two(other_x + k, y0, y1);
      shrink_two<rows>(a0 + k, ahead, x0, x1, y0, y1, s0, t0);
      shrink_two<rows>(a1 + k, ahead, x0, x1, y0, y1, s1, t1);
      shrink_two<rows>(a2 + k, ahead, x0, x1, y0, y1, s2, t2);
      shrink_two<rows>(a3 + k, ahead, x0, x1, y0, y1, s3, t3);
    }
    for (; k < n; k += kLanes) {
      const Vf w0 = load_some(a0 + k, n - k), w1 = load_some(a1 + k, n - k), w2 = load_some(a2 + k, n - k),
               w3 = load_some(a3 + k, n - k), first = load_some(x + k, n - k);
      s0 = fma(w0, first, s0);
      s1 = fma(w1, first, s1);
      s2 = fma(w2, first, s2);
      s3 = fma(w3, first, s3);
      if constexpr (rows > 1) {
        const Vf other = load_some(other_x + k, n - k);
        t0 = fma(w0, other, t0);
        t1 = fma(w1, other, t1);
        t2 = fma(w2, other, t2);
        t3 = fma(w3, other, t3);
      }
    }
    const float sums[2 * kFactors] = {reduce_add(s0), reduce_add(s1), reduce_add(s2), reduce_add(s3),
                                      reduce_add(t0), reduce_add(t1), reduce_add(t2), reduce_add(t3)};
    for (int r = 0; r < rows; ++r) put_low(of[r], first, sums + r * kFactors, count);
  }

  // y += low . b for four vectors of columns from `column` on.
  template <int rows>
  ARMLLM_INLINE void expand(const T* b, int64_t stride, int64_t rank, int64_t ahead, const Row<T> (&of)[rows],
                            int64_t column) {
    const float* const low = of[0].low;
    [[maybe_unused]] const float* const other_low = of[rows - 1].low;
    T* const y = of[0].y + column;
    [[maybe_unused]] T* const other_y = of[rows - 1].y + column;
    Vf s0, s1, s2, s3, t0 = zero(), t1 = zero(), t2 = zero(), t3 = zero();
    load_two(y, s0, s1);
    load_two(y + 2 * kLanes, s2, s3);
    if constexpr (rows > 1) {
      load_two(other_y, t0, t1);
      load_two(other_y + 2 * kLanes, t2, t3);
    }
    for (int64_t r = 0; r < rank; ++r, b += stride) {
      ARMLLM_LOOP("expand", rows);
      Vf w0, w1, w2, w3;
      load_two(b, w0, w1);
      load_two(b + 2 * kLanes, w2, w3);
      prefetch_two(b + ahead);
      prefetch_two(b + ahead + 2 * kLanes);
      const Vf share = splat(low[r]);
      s0 = fma(w0, share, s0);
      s1 = fma(w1, share, s1);
      s2 = fma(w2, share, s2);
      s3 = fma(w3, share, s3);
      if constexpr (rows > 1) {
        const Vf other = splat(other_low[r]);
        t0 = fma(w0, other, t0);
        t1 = fma(w1, other, t1);
        t2 = fma(w2, other, t2);
        t3 = fma(w3, other, t3);
      }
    }
    store_two(y, s0, s1);
    store_two(y + 2 * kLanes, s2, s3);
    if constexpr (rows > 1) {
      store_two(other_y, t0, t1);
      store_two(other_y + 2 * kLanes, t2, t3);
    }
  }
  // NOLINTEND(readability-function-size)
};

// The same for the last columns, n of them.
template <class T>
ARMLLM_INLINE void expand_rest(const T* b, int64_t stride, int64_t rank, const float* low, T* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Vf sum = load_some(y + i, n - i);
    for (int64_t r = 0; r < rank; ++r) sum = fma(load_some(b + r * stride + i, n - i), splat(low[r]), sum);
    store_some(y + i, sum, n - i);
  }
}

// `use` for the rows of a tile, as many at a time as Tiles takes, and whether they are the first.
template <class T, class Use>
ARMLLM_INLINE void for_rows(const LoraArgs& args, const LoraTile& tile, const Use& use) {
  const auto at = [&](int64_t place) ARMLLM_LAMBDA { return row_at<T>(args, place, tile.part); };
  int64_t place = tile.row_begin;
  if constexpr (Tiles<T>::kRows >= 4) {
    for (; place + 4 <= tile.row_end; place += 4) {
      const Row<T> rows[] = {at(place), at(place + 1), at(place + 2), at(place + 3)};
      use(rows, place == tile.row_begin);
    }
  }
  for (; place + 2 <= tile.row_end; place += 2) {
    const Row<T> rows[] = {at(place), at(place + 1)};
    use(rows, place == tile.row_begin);
  }
  if (place < tile.row_end) {
    const Row<T> rows[] = {at(place)};
    use(rows, place == tile.row_begin);
  }
}

template <class T>
ARMLLM_INLINE void shrink(const LoraArgs& args, const LoraTile& tile) {
  const int64_t n = args.in_features;
  const T* const a = static_cast<const T*>(args.a) + (tile.slot * args.parts + tile.part) * args.max_rank * n;
  for (int64_t i = tile.begin; i < tile.end; i += kFactors) {
    const int64_t count = tile.end - i < kFactors ? tile.end - i : kFactors;
    for_rows<T>(args, tile, [&](const auto& rows, bool first) ARMLLM_LAMBDA {
      Tiles<T>::shrink(a + i * n, n, count, first ? kFactors * n : 0, rows, i);
    });
  }
}

// DoRA: y + (y - bias) * norms, in columns of a part.
template <class T>
ARMLLM_INLINE void scale_row(T* y, const float* norms, const float* bias, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf whole = load_some(y + i, n - i);
    const Vf plain = bias == nullptr ? whole : sub(whole, load_some(bias + i, n - i));
    store_some(y + i, fma(plain, load_some(norms + i, n - i), whole), n - i);
  }
}

// The columns of a tile of the second product.
struct Columns {
  int64_t column, count;        // in y: the first one, and how many
  int64_t first_weight, width;  // in B: the first element, and those of a row
  int64_t rank;
};
ARMLLM_INLINE Columns columns_of(const LoraArgs& args, const LoraTile& tile) {
  const int64_t start = tile.part == 0 ? 0 : args.part_ends[tile.part - 1];
  return {start + tile.begin, tile.end - tile.begin,
          (tile.slot * args.out_features + start) * args.max_rank + tile.begin,
          args.part_ends[tile.part] - start, args.ranks[tile.slot * args.parts + tile.part]};
}

template <class T>
ARMLLM_INLINE void scale_rows(const LoraArgs& args, const LoraTile& tile, const Columns& of) {
  for (int64_t place = tile.row_begin; args.norms != nullptr && place < tile.row_end; ++place) {
    scale_row(row_at<T>(args, place, tile.part).y + of.column,
              args.norms + tile.slot * args.out_features + of.column,
              args.bias == nullptr ? nullptr : args.bias + of.column, of.count);
  }
}

// The columns from the `done`-th on, of each row alone.
template <class T>
ARMLLM_INLINE void expand_last(const LoraArgs& args, const LoraTile& tile, const Columns& of, int64_t done) {
  const T* const b = static_cast<const T*>(args.b) + of.first_weight + done;
  for (int64_t place = tile.row_begin; done < of.count && place < tile.row_end; ++place) {
    const Row<T> one = row_at<T>(args, place, tile.part);
    expand_rest(b, of.width, of.rank, one.low, one.y + of.column + done, of.count - done);
  }
}

template <class T>
ARMLLM_INLINE void expand(const LoraArgs& args, const LoraTile& tile) {
  const Columns of = columns_of(args, tile);
  scale_rows<T>(args, tile, of);
  const T* const b = static_cast<const T*>(args.b) + of.first_weight;
  int64_t i = 0;
  for (; i + 4 * kLanes <= of.count; i += 4 * kLanes) {
    for_rows<T>(args, tile, [&](const auto& rows, bool first) ARMLLM_LAMBDA {
      Tiles<T>::expand(b + i, of.width, of.rank, first ? 4 * 4 * kLanes : 0, rows, of.column + i);
    });
  }
  expand_last<T>(args, tile, of, i);
}

}  // namespace lora
