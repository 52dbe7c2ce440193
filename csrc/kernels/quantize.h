// Dynamic quantization of rows to int8, for quantize_rows and for the products' own activations.

#pragma once

#include "simd/primitives.h"

// What a row's numbers become: q = x / scale + zero.
struct RowScale {
  float scale;
  float zero;
};

// 1.5 * 2^23: added to a float of magnitude below 2^22 it rounds it to an integer, which the low bits then
// hold.
inline constexpr float kRounder = 12582912.0f;
inline constexpr int32_t kRounderBits = 0x4b400000;

// A NaN unless all of the row is finite; else the largest (and with `asymmetric` the smallest) number, or 0.
template <class T>
ARMLLM_INLINE void row_extremes(const T* x, int64_t n, bool asymmetric, float& low, float& high) {
  Vf most = zero(), least = zero(), poison = zero();
  const auto take = [&](Vf v) __attribute__((always_inline)) {
    poison = fma(v, zero(), poison);
    if (asymmetric) {
      most = max(most, v);
      least = min(least, v);
    } else {
      most = max(most, absolute(v));
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) take(load(x + i));
  if (i < n) take(load_first(x + i, n - i));
  const float none = reduce_add(poison);
  high = none + reduce_max(most);
  low = none - reduce_max(sub(zero(), least));
}

template <class T>
ARMLLM_INLINE RowScale row_scale(const T* x, int64_t n, bool asymmetric) {
  float low, high;
  row_extremes(x, n, asymmetric, low, high);
  if (high != high) return {high, 0};
  if (high < 0x1p-100f && -low < 0x1p-100f) return {0, 0};
  if (!asymmetric) return {high / 127.0f, 0};
  // Half of each first: the difference may be more than the largest float.
  const float scale = (high * 0.5f - low * 0.5f) / 127.5f;
  const float zero_point = ((-128.0f - low / scale) + kRounder) - kRounder;
  return {scale, zero_point < -128.0f ? -128.0f : zero_point > 127.0f ? 127.0f : zero_point};
}

// To the nearest integer, ties to even.
ARMLLM_INLINE Vf rounded_quotient(Vf x, Vf scale) {
  return sub(add(div(x, scale), splat(kRounder)), splat(kRounder));
}
ARMLLM_INLINE Vf quantized(Vf x, RowScale row, Vf scale) {
  return min(max(add(rounded_quotient(x, scale), splat(row.zero)), splat(-128.0f)), splat(127.0f));
}

// The int8 of each lane, which holds a small integer.
ARMLLM_INLINE void store_bytes(int8_t* p, Vf x) { store_low_bytes(p, bits(add(x, splat(kRounder)))); }

// Zeros where the scale is 0 or a NaN.
template <class T>
ARMLLM_INLINE void quantize_row(const T* x, int64_t n, RowScale row, int8_t* q) {
  if (!(row.scale > 0)) {
    for (int64_t i = 0; i < n; ++i) q[i] = 0;
    return;
  }
  const Vf scale = splat(row.scale);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bytes(q + i, quantized(load(x + i), row, scale));
  if (i < n) {
    int8_t last[kLanes];
    store_bytes(last, quantized(load_first(x + i, n - i), row, scale));
    for (int64_t j = 0; i + j < n; ++j) q[i + j] = last[j];
  }
}

template <class T>
ARMLLM_INLINE void quantize_rows(const QuantizeRowsArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const RowScale row = row_scale(x, a.width, a.zeros != nullptr);
    a.scales[r] = row.scale;
    if (a.zeros != nullptr) a.zeros[r] = static_cast<int32_t>(row.zero);
    quantize_row(x, a.width, row, a.q + r * a.q_stride);
  }
}
