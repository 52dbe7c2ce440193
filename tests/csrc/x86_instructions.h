// The instructions of AVX-512 and AMX that kernels use, element by element in C++: for conformance_x86, which
// tests these kernels on CPUs without them. Compiled before each target, in place of the compiler's own
// functions, whose names become macros. What an instruction computes: Intel SDM volume 2 (AVX-512), Intel
// Architecture Instruction Set Extensions Programming Reference, chapter 3 (AMX). Sums of products are in
// another order than the hardware's where the manual leaves it open.

#pragma once

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace x86 {

// An operand as elements of one type.
template <class E, int bytes = 64>
struct Elements {
  static constexpr int kCount = bytes / static_cast<int>(sizeof(E));
  E at[kCount] = {};

  Elements() = default;
  template <class V>
  explicit Elements(const V& v) {
    static_assert(sizeof(V) == sizeof at);
    memcpy(at, &v, sizeof at);
  }
  template <class V>
  V as() const {
    static_assert(sizeof(V) == sizeof at);
    V v;
    memcpy(&v, at, sizeof at);
    return v;
  }
};
template <class E, class V, class Of>
inline V each(const Of& of) {
  Elements<E, sizeof(V)> result;
  for (int i = 0; i < Elements<E, sizeof(V)>::kCount; ++i) result.at[i] = static_cast<E>(of(i));
  return result.template as<V>();
}
// The low or the high half of each 16 bytes of both, in turns.
template <class E, class V>
inline V unpack(const V& a, const V& b, bool high) {
  constexpr int kHalf = 8 / static_cast<int>(sizeof(E));
  const Elements<E> x(a), y(b);
  return each<E, V>([&](int i) {
    const int from = i / (2 * kHalf) * 2 * kHalf + i % (2 * kHalf) / 2 + (high ? kHalf : 0);
    return i % 2 == 0 ? x.at[from] : y.at[from];
  });
}

template <class E, class V>
inline V load_some(uint64_t mask, const void* p) {
  return each<E, V>([&](int i) {
    E e{};
    if ((mask >> i & 1) != 0)
      memcpy(&e, static_cast<const char*>(p) + i * static_cast<int>(sizeof(E)), sizeof e);
    return e;
  });
}
template <class E, class V>
inline void store_some(void* p, uint64_t mask, const V& v) {
  const Elements<E> x(v);
  for (int i = 0; i < Elements<E>::kCount; ++i) {
    if ((mask >> i & 1) != 0)
      memcpy(static_cast<char*>(p) + i * static_cast<int>(sizeof(E)), &x.at[i], sizeof(E));
  }
}
// What lies at a multiple of 64 bytes, as the aligned forms demand.
template <class P>
inline P aligned(P p) {
  if (reinterpret_cast<uintptr_t>(p) % 64 != 0) abort();
  return p;
}

// bfloat16, where subnormal numbers count as zero and are never made.
inline float from_bf16(uint16_t bits) {
  const uint32_t all = (bits & 0x7f80u) == 0 ? (bits & 0x8000u) << 16 : static_cast<uint32_t>(bits) << 16;
  float f;
  memcpy(&f, &all, sizeof f);
  return f;
}
inline uint16_t to_bf16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7f800000) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (isnan(f)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float no_subnormal(float f) { return fabsf(f) < 0x1p-126f ? copysignf(0, f) : f; }

template <class V>
inline __m512i narrow(const V& low, const V& high) {
  const Elements<float> x(low), y(high);
  return each<uint16_t, __m512i>([&](int i) { return to_bf16(i < 16 ? x.at[i] : y.at[i - 16]); });
}
inline __m256i narrow(const __m512& a) {
  const Elements<float> x(a);
  return each<uint16_t, __m256i>([&](int i) { return to_bf16(x.at[i]); });
}

template <class A, class B>
inline __m512 dot_bf16(const __m512& sums, const A& a, const B& b) {
  const Elements<float> s(sums);
  const Elements<uint16_t> x(a), y(b);
  return each<float, __m512>([&](int i) {
    const float odd = fmaf(from_bf16(x.at[2 * i + 1]), from_bf16(y.at[2 * i + 1]), s.at[i]);
    return no_subnormal(fmaf(from_bf16(x.at[2 * i]), from_bf16(y.at[2 * i]), no_subnormal(odd)));
  });
}
inline __m512i dot_int8(const __m512i& sums, const __m512i& a, const __m512i& b) {
  const Elements<int32_t> s(sums);
  const Elements<uint8_t> x(a);
  const Elements<int8_t> y(b);
  return each<int32_t, __m512i>([&](int i) {
    int32_t sum = s.at[i];
    for (int k = 4 * i; k < 4 * i + 4; ++k) sum += x.at[k] * y.at[k];
    return sum;
  });
}

inline __m512 multiply_add(const __m512& a, const __m512& b, const __m512& c) {
  const Elements<float> x(a), y(b), z(c);
  return each<float, __m512>([&](int i) { return fmaf(x.at[i], y.at[i], z.at[i]); });
}
inline __m512i multiply_pairs(const __m512i& a, const __m512i& b) {
  const Elements<int16_t> x(a), y(b);
  return each<int32_t, __m512i>(
      [&](int i) { return x.at[2 * i] * y.at[2 * i] + x.at[2 * i + 1] * y.at[2 * i + 1]; });
}
inline __m512i ternary(const __m512i& a, const __m512i& b, const __m512i& c, int table) {
  const Elements<uint8_t> x(a), y(b), z(c);
  return each<uint8_t, __m512i>([&](int i) {
    int bits = 0;
    for (int bit = 0; bit < 8; ++bit) {
      const int row = (x.at[i] >> bit & 1) << 2 | (y.at[i] >> bit & 1) << 1 | (z.at[i] >> bit & 1);
      bits |= (table >> row & 1) << bit;
    }
    return bits;
  });
}
inline uint32_t equal_elements(const __m512i& a, const __m512i& b) {
  const Elements<int16_t> x(a), y(b);
  uint32_t mask = 0;
  for (int i = 0; i < 32; ++i) mask |= static_cast<uint32_t>(x.at[i] == y.at[i]) << i;
  return mask;
}
inline __m512i to_integers(const __m512& a) {
  const Elements<float> x(a);
  return each<int32_t, __m512i>([&](int i) { return lrintf(x.at[i]); });
}
inline __m256 half(const __m512& a, int which) {
  const Elements<float> x(a);
  return each<float, __m256>([&](int i) { return x.at[8 * which + i]; });
}
inline __m512 halves_to_floats(const __m256i& a) {
  const Elements<uint16_t, 32> x(a);
  return each<float, __m512>([&](int i) { return _cvtsh_ss(x.at[i]); });
}
inline __m256i floats_to_halves(const __m512& a) {
  const Elements<float> x(a);
  return each<uint16_t, __m256i>([&](int i) { return _cvtss_sh(x.at[i], _MM_FROUND_TO_NEAREST_INT); });
}
inline __m512i permute(const __m512i& order, const __m512i& a) {
  const Elements<int64_t> from(order), x(a);
  return each<int64_t, __m512i>([&](int i) { return x.at[from.at[i] & 7]; });
}
// Two of four 16 bytes of each operand, chosen by two bits each.
inline __m512i shuffle_quarters(const __m512i& a, const __m512i& b, int choice) {
  const Elements<int32_t> x(a), y(b);
  return each<int32_t, __m512i>([&](int i) {
    const int from = 4 * (choice >> i / 4 * 2 & 3) + i % 4;
    return i < 8 ? x.at[from] : y.at[from];
  });
}

struct Tile {
  int rows, bytes;  // none of either: not configured
  unsigned char at[16][64];
};
inline thread_local Tile tiles[8];

inline void tile_config(const void* p) {
  const auto* const bytes = static_cast<const unsigned char*>(p);
  if (bytes[0] != 1 || bytes[1] != 0) abort();
  for (int i = 0; i < 8; ++i) {
    uint16_t columns;
    memcpy(&columns, bytes + 16 + 2 * i, sizeof columns);
    if (columns > 64 || bytes[48 + i] > 16) abort();
    tiles[i] = {bytes[48 + i], columns, {}};
  }
}
inline void tile_release() {
  for (Tile& t : tiles) t.rows = 0;
}
inline Tile& tile(int i) {
  if (tiles[i].rows == 0 || tiles[i].bytes == 0) abort();
  return tiles[i];
}
inline void tile_zero(int i) { memset(tile(i).at, 0, sizeof tile(i).at); }
inline void tile_load(int i, const void* p, int64_t stride) {
  tile_zero(i);
  for (int r = 0; r < tile(i).rows; ++r) {
    memcpy(tile(i).at[r], static_cast<const char*>(p) + r * stride, static_cast<size_t>(tile(i).bytes));
  }
}
inline void tile_store(int i, void* p, int64_t stride) {
  for (int r = 0; r < tile(i).rows; ++r) {
    memcpy(static_cast<char*>(p) + r * stride, tile(i).at[r], static_cast<size_t>(tile(i).bytes));
  }
}
// c += what `dot` makes of each four bytes of a row of a and of a column of b. Wrong shapes are an error.
template <class Sum, class Dot>
inline void tile_product(int c, int a, int b, const Dot& dot) {
  Tile &to = tile(c), &x = tile(a), &y = tile(b);
  if (c == a || a == b || b == c) abort();
  if (to.rows != x.rows || to.bytes != y.bytes || x.bytes != 4 * y.rows) abort();
  for (int m = 0; m < to.rows; ++m) {
    for (int n = 0; n < to.bytes; n += 4) {
      Sum sum;
      memcpy(&sum, to.at[m] + n, sizeof sum);
      sum = dot(sum, x.at[m], &y.at[0][n], y.rows);
      memcpy(to.at[m] + n, &sum, sizeof sum);
    }
  }
}
inline void tile_dot_bf16(int c, int a, int b) {
  tile_product<float>(c, a, b,
                      [](float sum, const unsigned char* row, const unsigned char* column, int depth) {
                        float halves[2] = {};
                        for (int k = 0; k < depth; ++k) {
                          uint16_t x[2], y[2];
                          memcpy(x, row + 4 * k, 4);
                          memcpy(y, column + 64 * k, 4);
                          for (int i = 0; i < 2; ++i)
                            halves[i] = no_subnormal(fmaf(from_bf16(x[i]), from_bf16(y[i]), halves[i]));
                        }
                        return no_subnormal(no_subnormal(sum) + no_subnormal(halves[0] + halves[1]));
                      });
}
inline void tile_dot_int8(int c, int a, int b) {
  tile_product<int32_t>(c, a, b,
                        [](int32_t sum, const unsigned char* row, const unsigned char* column, int depth) {
                          for (int k = 0; k < 4 * depth; ++k) {
                            int8_t x, y;
                            memcpy(&x, row + k, 1);
                            memcpy(&y, column + k / 4 * 64 + k % 4, 1);
                            sum += x * y;
                          }
                          return sum;
                        });
}

}  // namespace x86

// NOLINTBEGIN(bugprone-reserved-identifier, bugprone-macro-parentheses): Intel's names.
#define _mm512_setzero_ps() (__m512{})
#define _mm512_setzero_si512() (__m512i{})
#define _mm512_set1_ps(x) x86::each<float, __m512>([&](int) { return x; })
#define _mm512_set1_epi8(x) x86::each<int8_t, __m512i>([&](int) { return x; })
#define _mm512_set1_epi16(x) x86::each<int16_t, __m512i>([&](int) { return x; })
#define _mm512_set1_epi32(x) x86::each<int32_t, __m512i>([&](int) { return x; })
#undef _mm512_setr_epi64
#define _mm512_setr_epi64(...)             \
  x86::each<int64_t, __m512i>([&](int i) { \
    const int64_t all[] = {__VA_ARGS__};   \
    return all[i];                         \
  })
#define _mm512_loadu_ps(p) x86::load_some<float, __m512>(~0ull, p)
#define _mm512_loadu_si512(p) x86::load_some<int32_t, __m512i>(~0ull, p)
#define _mm512_load_ps(p) x86::load_some<float, __m512>(~0ull, x86::aligned(p))
#define _mm512_load_si512(p) x86::load_some<int32_t, __m512i>(~0ull, x86::aligned(p))
#define _mm512_maskz_loadu_ps(m, p) x86::load_some<float, __m512>(m, p)
#define _mm512_maskz_loadu_epi16(m, p) x86::load_some<int16_t, __m512i>(m, p)
#define _mm256_maskz_loadu_epi16(m, p) x86::load_some<int16_t, __m256i>(m, p)
#define _mm512_storeu_ps(p, v) x86::store_some<float>(p, ~0ull, v)
#define _mm512_storeu_si512(p, v) x86::store_some<int32_t>(p, ~0ull, v)
#define _mm512_store_ps(p, v) x86::store_some<float>(x86::aligned(p), ~0ull, v)
#define _mm512_store_si512(p, v) x86::store_some<int32_t>(x86::aligned(p), ~0ull, v)
#define _mm512_mask_storeu_ps(p, m, v) x86::store_some<float>(p, m, v)
#define _mm512_mask_storeu_epi32(p, m, v) x86::store_some<int32_t>(p, m, v)
#define _mm512_mask_storeu_epi16(p, m, v) x86::store_some<int16_t>(p, m, v)
#define _mm512_add_ps(a, b) ((a) + (b))
#define _mm512_mul_ps(a, b) ((a) * (b))
#define _mm512_fmadd_ps(a, b, c) x86::multiply_add(a, b, c)
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#define _mm512_xor_si512(a, b) ((a) ^ (b))
#define _mm512_add_epi32(a, b) ((__m512i)((__v16su)(a) + (__v16su)(b)))
#define _mm512_sub_epi8(a, b) ((__m512i)((__v64qu)(a) - (__v64qu)(b)))
#define _mm512_slli_epi16(a, n) ((__m512i)((__v32hu)(a) << (n)))
#define _mm512_slli_epi32(a, n) ((__m512i)((__v16su)(a) << (n)))
#define _mm512_srli_epi16(a, n) ((__m512i)((__v32hu)(a) >> (n)))
#define _mm512_srai_epi16(a, n) ((__m512i)((__v32hi)(a) >> (n)))
#define _mm512_ternarylogic_epi32(a, b, c, table) x86::ternary(a, b, c, table)
#define _mm512_cmpeq_epi16_mask(a, b) x86::equal_elements(a, b)
#define _mm512_madd_epi16(a, b) x86::multiply_pairs(a, b)
#define _mm512_dpbusd_epi32(c, a, b) x86::dot_int8(c, a, b)
#define _mm512_dpbf16_ps(c, a, b) x86::dot_bf16(c, a, b)
#define _mm512_cvtne2ps_pbh(high, low) ((__m512bh)x86::narrow(low, high))
#define _mm512_cvtneps_pbh(a) ((__m256bh)x86::narrow(a))
#define _mm512_cvtepi32_ps(a) ((__m512) __builtin_convertvector((__v16si)(a), __v16sf))
#define _mm512_cvtps_epi32(a) x86::to_integers(a)
#define _mm512_cvtepu16_epi32(a) ((__m512i) __builtin_convertvector((__v16hu)(a), __v16su))
#define _mm512_maskz_cvtepu16_epi32(m, a) _mm512_cvtepu16_epi32(a)
#define _mm512_cvtepi8_epi16(a) ((__m512i) __builtin_convertvector((__v32qi)(a), __v32hi))
#define _mm512_maskz_cvtph_ps(m, a) x86::halves_to_floats(a)
#define _mm512_maskz_cvtps_ph(m, a, rounding) x86::floats_to_halves(a)
#define _mm512_castps512_ps256(a) x86::half(a, 0)
#define _mm512_extractf32x8_ps(a, n) x86::half(a, n)
#define _mm512_permutexvar_epi64(order, a) x86::permute(order, a)
#define _mm512_shuffle_i32x4(a, b, n) x86::shuffle_quarters(a, b, n)
#define _mm512_unpacklo_epi16(a, b) x86::unpack<int16_t>(a, b, false)
#define _mm512_unpackhi_epi16(a, b) x86::unpack<int16_t>(a, b, true)
#define _mm512_unpacklo_epi32(a, b) x86::unpack<int32_t>(a, b, false)
#define _mm512_unpackhi_epi32(a, b) x86::unpack<int32_t>(a, b, true)
#define _mm512_unpacklo_epi64(a, b) x86::unpack<int64_t>(a, b, false)
#define _mm512_unpackhi_epi64(a, b) x86::unpack<int64_t>(a, b, true)
#define _mm512_unpacklo_ps(a, b) x86::unpack<float>(a, b, false)
#define _mm512_unpackhi_ps(a, b) x86::unpack<float>(a, b, true)
#define _mm512_unpacklo_pd(a, b) x86::unpack<double>(a, b, false)
#define _mm512_unpackhi_pd(a, b) x86::unpack<double>(a, b, true)
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(p) x86::tile_config(p)
#define _tile_release() x86::tile_release()
#define _tile_zero(i) x86::tile_zero(i)
#define _tile_loadd(i, p, stride) x86::tile_load(i, p, stride)
#define _tile_stored(i, p, stride) x86::tile_store(i, p, stride)
#define _tile_dpbf16ps(c, a, b) x86::tile_dot_bf16(c, a, b)
#define _tile_dpbssd(c, a, b) x86::tile_dot_int8(c, a, b)
// NOLINTEND(bugprone-reserved-identifier, bugprone-macro-parentheses)
