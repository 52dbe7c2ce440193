// Register tiles of attention.h in SVE, whose vectors can lie in no array: two columns of eight accumulators
// each, which have names. A tile of M rows uses M of a column for one product and, if these are few, the
// others for further ones, so that multiply-adds don't wait for each other. Vectors have at most a panel's
// sixteen lanes: shorter ones take two of them as columns, of sixteen one, whose products go to the columns
// in turn.

#pragma once

#ifndef ARMLLM_INLINE  // opened alone
#define ARMLLM_SVE_LANES 16
#include "kernels/exp_sve.h"
#endif
#include "kernels/kv_cache.h"

inline constexpr int kRowTile = 8;

#define ARMLLM_EIGHT(x) x##0, x##1, x##2, x##3, x##4, x##5, x##6, x##7

template <int i>
ARMLLM_INLINE Vf& pick(ARMLLM_EIGHT(Vf& x)) {
  if constexpr (i == 0) return x0;
  if constexpr (i == 1) return x1;
  if constexpr (i == 2) return x2;
  if constexpr (i == 3) return x3;
  if constexpr (i == 4) return x4;
  if constexpr (i == 5) return x5;
  if constexpr (i == 6) return x6;
  if constexpr (i == 7) return x7;
}

// Into how many accumulators of a column a row's products go.
template <int M>
inline constexpr int kPhases = M <= 2   ? 4
                               : M <= 4 ? 2
                                        : 1;

// NOLINTBEGIN(readability-function-size): SVE vectors have no size, so no array or struct can hold eight.
template <int lane, int m, int M>
ARMLLM_INLINE void multiply_row(Vf k, Vf q, ARMLLM_EIGHT(Vf& x)) {
  if constexpr (m < M) {
    Vf& sum = pick<m + M*(lane % kPhases<M>)>(ARMLLM_EIGHT(x));
    sum = svmla_lane_f32(sum, k, q, lane);
  }
}
template <int lane, int M>
ARMLLM_INLINE void multiply_lane(Vf k, ARMLLM_EIGHT(Vf q), ARMLLM_EIGHT(Vf& x)) {
  multiply_row<lane, 0, M>(k, q0, ARMLLM_EIGHT(x));
  multiply_row<lane, 1, M>(k, q1, ARMLLM_EIGHT(x));
  multiply_row<lane, 2, M>(k, q2, ARMLLM_EIGHT(x));
  multiply_row<lane, 3, M>(k, q3, ARMLLM_EIGHT(x));
  multiply_row<lane, 4, M>(k, q4, ARMLLM_EIGHT(x));
  multiply_row<lane, 5, M>(k, q5, ARMLLM_EIGHT(x));
  multiply_row<lane, 6, M>(k, q6, ARMLLM_EIGHT(x));
  multiply_row<lane, 7, M>(k, q7, ARMLLM_EIGHT(x));
}

// Four elements of row m, in every 128 bits of a vector.
template <int m, int M>
ARMLLM_INLINE Vf quad_of(const float* p, int64_t stride) {
  if constexpr (m < M) return svld1rq_f32(every(), p + m * stride);
  return zero();
}
template <int m, int M>
ARMLLM_INLINE Vf total(ARMLLM_EIGHT(Vf& x)) {
  constexpr int kFirst = m < M ? m : 0;
  Vf sum = pick<kFirst>(ARMLLM_EIGHT(x));
  if constexpr (kPhases<M> > 1) sum = add(sum, pick<kFirst + M>(ARMLLM_EIGHT(x)));
  if constexpr (kPhases<M> > 2) {
    sum = add(sum, add(pick<kFirst + 2 * M>(ARMLLM_EIGHT(x)), pick<kFirst + 3 * M>(ARMLLM_EIGHT(x))));
  }
  return sum;
}

template <int m, int M, bool two>
ARMLLM_INLINE void store_logits(float* logits, Vf scale, ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  if constexpr (m < M) {
    float* out = logits + m * kChunk;
    const Vf x = total<m, M>(ARMLLM_EIGHT(a)), y = total<m, M>(ARMLLM_EIGHT(b));
    store(out, mul(two ? x : add(x, y), scale));
    if (two) store(out + kLanes, mul(y, scale));
  }
}

// One or two vectors of a panel's logits.
template <int M, bool two, class K>
ARMLLM_INLINE void column_logits(const float* q, const K* keys, int64_t head_dim, float scale,
                                 float* logits) {
  Vf a0 = zero(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  Vf b0 = zero(), b1 = b0, b2 = b0, b3 = b0, b4 = b0, b5 = b0, b6 = b0, b7 = b0;
  for (int64_t d = 0; d < head_dim; d += 4, keys += 4 * kPanel) {
    if constexpr (M > 1 && two) {  // NOLINT(bugprone-branch-clone): both are empty unless loops are marked
      ARMLLM_LOOP("logits", M);
    } else if constexpr (M > 1) {
      ARMLLM_LOOP("logits16", M);
    }
    const float* p = q + d;
    const Vf q0 = quad_of<0, M>(p, head_dim), q1 = quad_of<1, M>(p, head_dim);
    const Vf q2 = quad_of<2, M>(p, head_dim), q3 = quad_of<3, M>(p, head_dim);
    const Vf q4 = quad_of<4, M>(p, head_dim), q5 = quad_of<5, M>(p, head_dim);
    const Vf q6 = quad_of<6, M>(p, head_dim), q7 = quad_of<7, M>(p, head_dim);
    multiply_lane<0, M>(load(keys), ARMLLM_EIGHT(q), ARMLLM_EIGHT(a));
    multiply_lane<1, M>(load(keys + kPanel), ARMLLM_EIGHT(q), ARMLLM_EIGHT(a));
    if constexpr (two) {
      multiply_lane<0, M>(load(keys + kLanes), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
      multiply_lane<1, M>(load(keys + kPanel + kLanes), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
      multiply_lane<2, M>(load(keys + 2 * kPanel), ARMLLM_EIGHT(q), ARMLLM_EIGHT(a));
      multiply_lane<3, M>(load(keys + 3 * kPanel), ARMLLM_EIGHT(q), ARMLLM_EIGHT(a));
      multiply_lane<2, M>(load(keys + 2 * kPanel + kLanes), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
      multiply_lane<3, M>(load(keys + 3 * kPanel + kLanes), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
    } else {
      multiply_lane<2, M>(load(keys + 2 * kPanel), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
      multiply_lane<3, M>(load(keys + 3 * kPanel), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
    }
  }
  const Vf s = splat(scale);
  store_logits<0, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<1, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<2, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<3, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<4, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<5, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<6, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
  store_logits<7, M, two>(logits, s, ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
}

// Four vectors, `stride` apart, times the four elements of q.
template <class K>
ARMLLM_INLINE void multiply_four(const K* x, int64_t stride, Vf q, Vf& a, Vf& b, Vf& c, Vf& d) {
  a = svmla_lane_f32(a, load(x), q, 0);
  b = svmla_lane_f32(b, load(x + stride), q, 1);
  c = svmla_lane_f32(c, load(x + 2 * stride), q, 2);
  d = svmla_lane_f32(d, load(x + 3 * stride), q, 3);
}

// logits[m, 0..16) = q[m] . keys of one panel * scale.
template <int M, class K>
ARMLLM_INLINE void panel_logits(const float* q, const K* keys, int64_t head_dim, float scale, float* logits) {
  if (kLanes == kPanel) {
    column_logits<M, false>(q, keys, head_dim, scale, logits);
    return;
  }
  for (int64_t first = 0; first < kPanel; first += 2 * kLanes) {
    column_logits<M, true>(q, keys + first, head_dim, scale, logits + first);
  }
}

// One row and two panels, `x` and `y`, whose vectors share a load of the query: loads are the limit. `two`
// vectors of a panel, or one and eight elements of a head.
template <bool two, class K>
ARMLLM_INLINE void two_panels_logits(const float* q, const K* x, const K* y, int64_t head_dim, float scale,
                                     float* logits) {
  Vf a0 = zero(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  Vf b0 = zero(), b1 = b0, b2 = b0, b3 = b0, b4 = b0, b5 = b0, b6 = b0, b7 = b0;
  constexpr int64_t kStep = two ? 4 : 8;
  const int64_t next = two ? kLanes : 4 * kPanel;
  for (int64_t d = 0; d < head_dim; d += kStep, x += kStep * kPanel, y += kStep * kPanel) {
    if constexpr (two) {  // NOLINT(bugprone-branch-clone): both are empty unless loops are marked
      ARMLLM_LOOP("logits", 1);
    } else {
      ARMLLM_LOOP("logits16", 1);
    }
    const Vf four = svld1rq_f32(every(), q + d);
    const Vf more = two ? four : svld1rq_f32(every(), q + d + 4);
    multiply_four(x, kPanel, four, a0, a1, a2, a3);
    multiply_four(x + next, kPanel, more, a4, a5, a6, a7);
    multiply_four(y, kPanel, four, b0, b1, b2, b3);
    multiply_four(y + next, kPanel, more, b4, b5, b6, b7);
  }
  const Vf s = splat(scale), a = add(add(a0, a1), add(a2, a3)), b = add(add(b0, b1), add(b2, b3));
  const Vf c = add(add(a4, a5), add(a6, a7)), d = add(add(b4, b5), add(b6, b7));
  store(logits, mul(two ? a : add(a, c), s));
  store(logits + kPanel, mul(two ? b : add(b, d), s));
  if constexpr (two) {
    store(logits + kLanes, mul(c, s));
    store(logits + kPanel + kLanes, mul(d, s));
  }
}

// The logits of one row for panels two by two; returns for how many.
template <class K>
ARMLLM_INLINE int64_t row_logits(const float* q, const K* const* panels, int64_t count, int64_t head_dim,
                                 float scale, float* logits) {
  int64_t i = 0;
  for (; i + 2 <= count; i += 2, logits += 2 * kPanel) {
    if (kLanes == kPanel) {
      two_panels_logits<false>(q, panels[i], panels[i + 1], head_dim, scale, logits);
    } else {
      for (int64_t first = 0; first < kPanel; first += 2 * kLanes) {
        two_panels_logits<true>(q, panels[i] + first, panels[i + 1] + first, head_dim, scale, logits + first);
      }
    }
  }
  return i;
}

// What accumulator i starts from: a row of values times its factor, or 0.
template <int i, int M>
ARMLLM_INLINE Vf start(svbool_t lanes, const float* values, int64_t head_dim, const float* factor) {
  if constexpr (i < M) return mul(load_lanes(lanes, values + i * head_dim), splat(factor[i]));
  return zero();
}
template <int m, int M>
ARMLLM_INLINE void store_values(svbool_t lanes, float* values, int64_t head_dim, ARMLLM_EIGHT(Vf& x)) {
  if constexpr (m < M) store_lanes(lanes, values + m * head_dim, total<m, M>(ARMLLM_EIGHT(x)));
}

template <int lane, int M, class K>
ARMLLM_INLINE void add_token(svbool_t first, svbool_t second, const K* x, ARMLLM_EIGHT(Vf q),
                             ARMLLM_EIGHT(Vf& a), ARMLLM_EIGHT(Vf& b)) {
  multiply_lane<lane, M>(load_lanes(first, x), ARMLLM_EIGHT(q), ARMLLM_EIGHT(a));
  multiply_lane<lane, M>(load_lanes(second, x + kLanes), ARMLLM_EIGHT(q), ARMLLM_EIGHT(b));
}

// add_all_values for one row and four vectors, which share a load of its weights.
template <class K>
ARMLLM_INLINE void add_four_vectors(const float* p, const K* const* panels, int64_t n, int64_t d,
                                    int64_t head_dim, float factor, float* values) {
  const Vf f = splat(factor), none = zero();
  Vf a0 = mul(load(values), f), a1 = none, a2 = none, a3 = none;
  Vf b0 = mul(load(values + kLanes), f), b1 = none, b2 = none, b3 = none;
  Vf c0 = mul(load(values + 2 * kLanes), f), c1 = none, c2 = none, c3 = none;
  Vf d0 = mul(load(values + 3 * kLanes), f), d1 = none, d2 = none, d3 = none;
  for (int64_t j = 0; j < n; j += kPanel) {
    const K* x = panels[j / kPanel] + d;
    const int64_t end = n - j < kPanel ? n : j + kPanel;
    int64_t t = j;
    for (; t + 4 <= end; t += 4, x += 4 * head_dim) {
      ARMLLM_LOOP("values", 1);
      const Vf q = svld1rq_f32(every(), p + t);
      multiply_four(x, head_dim, q, a0, a1, a2, a3);
      multiply_four(x + kLanes, head_dim, q, b0, b1, b2, b3);
      multiply_four(x + 2 * kLanes, head_dim, q, c0, c1, c2, c3);
      multiply_four(x + 3 * kLanes, head_dim, q, d0, d1, d2, d3);
    }
    for (; t < end; ++t, x += head_dim) {
      const Vf w = splat(p[t]);
      a0 = fma(load(x), w, a0);
      b0 = fma(load(x + kLanes), w, b0);
      c0 = fma(load(x + 2 * kLanes), w, c0);
      d0 = fma(load(x + 3 * kLanes), w, d0);
    }
  }
  store(values, add(add(a0, a1), add(a2, a3)));
  store(values + kLanes, add(add(b0, b1), add(b2, b3)));
  store(values + 2 * kLanes, add(add(c0, c1), add(c2, c3)));
  store(values + 3 * kLanes, add(add(d0, d1), add(d2, d3)));
}

// NOLINTEND(readability-function-size)

// values[m] = values[m] * factor[m] + P[m, 0..n) V[0..n], for two vectors of a head's elements at a time,
// values in panels of 16 tokens. What lies behind the last token is never read: 0 * NaN is not 0.
template <int M, class K>
ARMLLM_INLINE void add_all_values(const float* p, const K* const* panels, int64_t n, int64_t head_dim,
                                  const float* factor, float* all_values) {
  int64_t d = 0;
  if constexpr (M == 1) {
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes) {
      add_four_vectors(p, panels, n, d, head_dim, factor[0], all_values + d);
    }
  }
  for (; d < head_dim; d += 2 * kLanes) {
    float *values = all_values + d, *next = values + kLanes;
    const int64_t rest = head_dim - d;
    const svbool_t first = first_lanes(rest < kLanes ? rest : kLanes);
    const svbool_t second = first_lanes(rest < 2 * kLanes ? rest - kLanes : kLanes);
    Vf a0 = start<0, M>(first, values, head_dim, factor), a1 = start<1, M>(first, values, head_dim, factor);
    Vf a2 = start<2, M>(first, values, head_dim, factor), a3 = start<3, M>(first, values, head_dim, factor);
    Vf a4 = start<4, M>(first, values, head_dim, factor), a5 = start<5, M>(first, values, head_dim, factor);
    Vf a6 = start<6, M>(first, values, head_dim, factor), a7 = start<7, M>(first, values, head_dim, factor);
    Vf b0 = start<0, M>(second, next, head_dim, factor), b1 = start<1, M>(second, next, head_dim, factor);
    Vf b2 = start<2, M>(second, next, head_dim, factor), b3 = start<3, M>(second, next, head_dim, factor);
    Vf b4 = start<4, M>(second, next, head_dim, factor), b5 = start<5, M>(second, next, head_dim, factor);
    Vf b6 = start<6, M>(second, next, head_dim, factor), b7 = start<7, M>(second, next, head_dim, factor);
    for (int64_t j = 0; j < n; j += kPanel) {
      const K* x = panels[j / kPanel] + d;
      const int64_t end = n - j < kPanel ? n : j + kPanel;
      int64_t t = j;
      for (; t + 4 <= end; t += 4, x += 4 * head_dim) {
        if constexpr (M > 1) {
          ARMLLM_LOOP("values", M);
        }
        const float* w = p + t;
        const Vf q0 = quad_of<0, M>(w, kChunk), q1 = quad_of<1, M>(w, kChunk);
        const Vf q2 = quad_of<2, M>(w, kChunk), q3 = quad_of<3, M>(w, kChunk);
        const Vf q4 = quad_of<4, M>(w, kChunk), q5 = quad_of<5, M>(w, kChunk);
        const Vf q6 = quad_of<6, M>(w, kChunk), q7 = quad_of<7, M>(w, kChunk);
        add_token<0, M>(first, second, x, ARMLLM_EIGHT(q), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
        add_token<1, M>(first, second, x + head_dim, ARMLLM_EIGHT(q), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
        add_token<2, M>(first, second, x + 2 * head_dim, ARMLLM_EIGHT(q), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
        add_token<3, M>(first, second, x + 3 * head_dim, ARMLLM_EIGHT(q), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
      }
      for (; t < end; ++t, x += head_dim) {
        const float* w = p + t;
        const Vf q0 = quad_of<0, M>(w, kChunk), q1 = quad_of<1, M>(w, kChunk);
        const Vf q2 = quad_of<2, M>(w, kChunk), q3 = quad_of<3, M>(w, kChunk);
        const Vf q4 = quad_of<4, M>(w, kChunk), q5 = quad_of<5, M>(w, kChunk);
        const Vf q6 = quad_of<6, M>(w, kChunk), q7 = quad_of<7, M>(w, kChunk);
        add_token<0, M>(first, second, x, ARMLLM_EIGHT(q), ARMLLM_EIGHT(a), ARMLLM_EIGHT(b));
      }
    }
#define ARMLLM_STORE(m)                                         \
  store_values<m, M>(first, values, head_dim, ARMLLM_EIGHT(a)); \
  store_values<m, M>(second, next, head_dim, ARMLLM_EIGHT(b));
    ARMLLM_STORE(0)
    ARMLLM_STORE(1)
    ARMLLM_STORE(2)
    ARMLLM_STORE(3)
    ARMLLM_STORE(4)
    ARMLLM_STORE(5)
    ARMLLM_STORE(6)
    ARMLLM_STORE(7)
#undef ARMLLM_STORE
  }
}

#undef ARMLLM_EIGHT
