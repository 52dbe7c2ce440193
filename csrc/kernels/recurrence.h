// Layers with a state per sequence (kernels.h): a short convolution, and linear attention over a state whose
// columns are independent. Four vectors of columns see a sequence's tokens one after the other, so their part
// of the state is read from memory once. SVE's vectors can lie in no array, so the four have names.

#pragma once

#include "kernels/activation.h"
#include "kernels/norm.h"
#include "simd/primitives.h"

namespace recurrence {

// One token in `n` channels. rows: the inputs that the taps meet, the oldest first.
template <class T>
ARMLLM_INLINE void convolve_token(const CausalConvArgs& a, const T* const* rows, const float* taps,
                                  const float* bias, T* out, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t left = n - i;
    Vf sum = bias == nullptr ? zero() : load_some(bias + i, left);
    for (int64_t j = 0; j < a.width; ++j) {
      ARMLLM_LOOP("convolve", 1);
      sum = fma(load_some(rows[j] + i, left), load_some(taps + j * a.channels + i, left), sum);
    }
    if (a.activated) sum = silu(sum);
    store_some(out + i, sum, left);
  }
}

template <class T>
ARMLLM_INLINE void convolve(const CausalConvArgs& a, int64_t begin, int64_t end) {
  const int64_t chunks = (a.channels + kConvChannels - 1) / kConvChannels, before = a.width - 1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t s = item / chunks, first = item % chunks * kConvChannels;
    const int64_t n = a.channels - first < kConvChannels ? a.channels - first : kConvChannels;
    const int64_t start = a.sequences.starts[s], tokens = a.sequences.starts[s + 1] - start;
    T* const state = static_cast<T*>(a.states) + a.sequences.slots[s] * before * a.channels + first;
    const T* const x = static_cast<const T*>(a.x) + start * a.x_stride + first;
    T* const out = static_cast<T*>(a.out) + start * a.out_stride + first;
    // The input of a token of this sequence; those before the first one are negative.
    const auto input = [&](int64_t t) ARMLLM_LAMBDA -> const T* {
      return t < 0 ? state + (before + t) * a.channels : x + t * a.x_stride;
    };
    for (int64_t t = 0; t < tokens; ++t) {
      const T* rows[kMaxConvWidth];
      for (int64_t j = 0; j <= before; ++j) rows[j] = input(t - before + j);
      convolve_token(a, rows, a.taps + first, a.bias == nullptr ? nullptr : a.bias + first,
                     out + t * a.out_stride, n);
    }
    for (int64_t j = 0; j < before; ++j) {  // a row of the state is read before it is written
      memmove(state + j * a.channels, input(tokens - before + j), static_cast<size_t>(n) * sizeof(T));
    }
  }
}

inline constexpr int64_t kTokens = 8;  // whose keys and queries are floats at a time

// Some tokens of a sequence and a head.
struct Tokens {
  int64_t first, count;
  float decay[kTokens], strength[kTokens];
  float key[kTokens][kMaxStateKeys], query[kTokens][kMaxStateKeys];
};

template <class T>
ARMLLM_INLINE void put_floats(float* to, const T* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; i += kLanes)
    store_some(to + i, mul(load_some(x + i, n - i), splat(scale)), n - i);
}

template <class T>
ARMLLM_INLINE void put_tokens(const StateScanArgs& a, int64_t head, Tokens& tokens) {
  const int64_t key_head = head / (a.heads / a.key_heads);
  for (int64_t i = 0; i < tokens.count; ++i) {
    const int64_t t = tokens.first + i;
    const T* const key = static_cast<const T*>(a.key) + t * a.key_stride + key_head * a.key_head_stride;
    const T* const query =
        static_cast<const T*>(a.query) + t * a.query_stride + key_head * a.query_head_stride;
    float key_scale = 1, query_scale = 1;
    if (a.delta) {
      key_scale = 1.0f / sqrtf(sum_of_squares(key, a.key_dim) + 1e-6f);
      query_scale = 1.0f / sqrtf((sum_of_squares(query, a.key_dim) + 1e-6f) * static_cast<float>(a.key_dim));
    }
    put_floats(tokens.key[i], key, a.key_dim, key_scale);
    put_floats(tokens.query[i], query, a.key_dim, query_scale);
    store_first(&tokens.decay[i], exp_of_negative(splat(a.log_decay[t * a.heads + head])), 1);
    tokens.strength[i] = a.strength[t * a.heads + head];
  }
}

// Four vectors of columns.
struct Four {
  float* state[4];    // their first rows; the next ones are kStateColumns further
  int64_t column[4];  // two that are the same compute the same
};
ARMLLM_INLINE Four four_from(const StateScanArgs& a, float* state, int64_t column) {
  Four four;
  const int64_t padded = (a.value_dim + kStateColumns - 1) / kStateColumns * kStateColumns;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t own = column + i * kLanes < padded ? column + i * kLanes : column;
    four.column[i] = own;
    four.state[i] = state + own / kStateColumns * a.key_dim * kStateColumns + own % kStateColumns;
  }
  return four;
}

// What a key finds.
ARMLLM_INLINE void find(const Four& four, const float* key, int64_t n, Vf& w0, Vf& w1, Vf& w2, Vf& w3) {
  w0 = w1 = w2 = w3 = zero();
  for (int64_t i = 0; i < n; ++i) {
    ARMLLM_LOOP("find", 4);
    const int64_t at = i * kStateColumns;
    const Vf k = splat(key[i]);
    w0 = fma(k, load(four.state[0] + at), w0);
    w1 = fma(k, load(four.state[1] + at), w1);
    w2 = fma(k, load(four.state[2] + at), w2);
    w3 = fma(k, load(four.state[3] + at), w3);
  }
}

// NOLINTBEGIN(readability-function-size): the vectors have no array.
// A token's pass: u goes into the state, the query reads y; with `ahead` the next token's key finds w.
template <bool ahead>
ARMLLM_INLINE void pass(const Four& four, const Tokens& tokens, int64_t token, int64_t n, Vf u0, Vf u1, Vf u2,
                        Vf u3, Vf& y0, Vf& y1, Vf& y2, Vf& y3, Vf& w0, Vf& w1, Vf& w2, Vf& w3) {
  const float* const key = tokens.key[token];
  const float* const query = tokens.query[token];
  [[maybe_unused]] const float* const next = tokens.key[ahead ? token + 1 : token];
  const Vf decay = splat(tokens.decay[token]);
  y0 = y1 = y2 = y3 = w0 = w1 = w2 = w3 = zero();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = i * kStateColumns;
    const Vf k = splat(key[i]), q = splat(query[i]);
    // All are read before one is written.
    const Vf s0 = fma(k, u0, mul(load(four.state[0] + at), decay));
    const Vf s1 = fma(k, u1, mul(load(four.state[1] + at), decay));
    const Vf s2 = fma(k, u2, mul(load(four.state[2] + at), decay));
    const Vf s3 = fma(k, u3, mul(load(four.state[3] + at), decay));
    store(four.state[0] + at, s0);
    store(four.state[1] + at, s1);
    store(four.state[2] + at, s2);
    store(four.state[3] + at, s3);
    y0 = fma(q, s0, y0);
    y1 = fma(q, s1, y1);
    y2 = fma(q, s2, y2);
    y3 = fma(q, s3, y3);
    if constexpr (ahead) {
      ARMLLM_LOOP("pass_ahead", 4);
      const Vf x = splat(next[i]);
      w0 = fma(x, s0, w0);
      w1 = fma(x, s1, w1);
      w2 = fma(x, s2, w2);
      w3 = fma(x, s3, w3);
    } else {
      ARMLLM_LOOP("pass", 4);
    }
  }
}
// NOLINTEND(readability-function-size)

// What a token writes: strength * (v - decay * found), found being 0 without the delta rule.
ARMLLM_INLINE Vf written(const Tokens& tokens, int64_t token, Vf value, Vf found) {
  return mul(splat(tokens.strength[token]), fma(splat(-tokens.decay[token]), found, value));
}

template <class T>
ARMLLM_INLINE void scan_four(const StateScanArgs& a, const Tokens& tokens, int64_t head, const Four& four) {
  const auto left = [&](int i) ARMLLM_LAMBDA { return a.value_dim - four.column[i]; };
  const float skip = a.skip == nullptr ? 0.0f : a.skip[head];
  Vf w0 = zero(), w1 = zero(), w2 = zero(), w3 = zero();
  if (a.delta) find(four, tokens.key[0], a.key_dim, w0, w1, w2, w3);
  for (int64_t i = 0; i < tokens.count; ++i) {
    const int64_t t = tokens.first + i;
    const T* const value = static_cast<const T*>(a.value) + t * a.value_stride + head * a.value_head_stride;
    float* const out = a.out + (t * a.heads + head) * a.value_dim;
    const Vf v0 = load_some(value + four.column[0], left(0)), v1 = load_some(value + four.column[1], left(1));
    const Vf v2 = load_some(value + four.column[2], left(2)), v3 = load_some(value + four.column[3], left(3));
    const Vf u0 = written(tokens, i, v0, w0), u1 = written(tokens, i, v1, w1);
    const Vf u2 = written(tokens, i, v2, w2), u3 = written(tokens, i, v3, w3);
    Vf y0, y1, y2, y3;
    if (a.delta && i + 1 < tokens.count) {
      pass<true>(four, tokens, i, a.key_dim, u0, u1, u2, u3, y0, y1, y2, y3, w0, w1, w2, w3);
    } else {
      pass<false>(four, tokens, i, a.key_dim, u0, u1, u2, u3, y0, y1, y2, y3, w0, w1, w2, w3);
    }
    store_some(out + four.column[0], fma(splat(skip), v0, y0), left(0));
    store_some(out + four.column[1], fma(splat(skip), v1, y1), left(1));
    store_some(out + four.column[2], fma(splat(skip), v2, y2), left(2));
    store_some(out + four.column[3], fma(splat(skip), v3, y3), left(3));
  }
}

template <class T>
ARMLLM_INLINE void scan(const StateScanArgs& a, int64_t begin, int64_t end) {
  const int64_t chunks = (a.value_dim + kScanColumns - 1) / kScanColumns;
  const int64_t head_floats = state_floats(1, a.key_dim, a.value_dim);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t s = item / chunks / a.heads, head = item / chunks % a.heads;
    const int64_t column_begin = item % chunks * kScanColumns;
    const int64_t rest = a.value_dim - column_begin;
    const int64_t column_end = column_begin + (rest < kScanColumns ? rest : kScanColumns);
    float* const state = a.states + (a.sequences.slots[s] * a.heads + head) * head_floats;
    const int64_t last = a.sequences.starts[s + 1];
    Tokens tokens;
    for (tokens.first = a.sequences.starts[s]; tokens.first < last; tokens.first += kTokens) {
      tokens.count = last - tokens.first < kTokens ? last - tokens.first : kTokens;
      put_tokens<T>(a, head, tokens);
      for (int64_t column = column_begin; column < column_end; column += 4 * kLanes) {
        scan_four<T>(a, tokens, head, four_from(a, state, column));
      }
    }
  }
}

}  // namespace recurrence
