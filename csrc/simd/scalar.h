// Vector primitives over the compiler's own vector type of kLanes floats. kLanes = 1 is the plain scalar
// code; the x86 targets compile the same text with 8 and 16 lanes. neon.h has the same interface.
//
// Included inside the namespace of a target, which has defined ARMLLM_LANES.

inline constexpr int kLanes = ARMLLM_LANES;

typedef float Vf __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef uint32_t Vu __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef int32_t Vi __attribute__((vector_size(4 * ARMLLM_LANES)));
typedef uint16_t Vh __attribute__((vector_size(2 * ARMLLM_LANES)));

ARMLLM_INLINE Vf splat(float x) { return x - Vf{}; }
ARMLLM_INLINE Vf zero() { return Vf{}; }
ARMLLM_INLINE Vu bits(Vf x) { return (Vu)x; }
ARMLLM_INLINE Vf from_bits(Vu x) { return (Vf)x; }
ARMLLM_INLINE Vu widen(Vh x) { return __builtin_convertvector(x, Vu); }

ARMLLM_INLINE Vf load(const float* p) {
  Vf x;
  memcpy(&x, p, sizeof x);
  return x;
}
ARMLLM_INLINE Vf load(const bfloat16* p) {
  Vh x;
  memcpy(&x, p, sizeof x);
  return from_bits(widen(x) << 16);
}
ARMLLM_INLINE void store(float* p, Vf x) { memcpy(p, &x, sizeof x); }

// Round to nearest even; a NaN stays one (quiet).
ARMLLM_INLINE Vu bf16_bits(Vf x) {
  const Vu u = bits(x);
  const Vu rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return x == x ? rounded : (u >> 16 | 0x40);
}
ARMLLM_INLINE void store(bfloat16* p, Vf x) {
  const Vh h = __builtin_convertvector(bf16_bits(x), Vh);
  memcpy(p, &h, sizeof h);
}

// The first n < kLanes lanes; the others are zero.
template <class T>
ARMLLM_INLINE Vf load_first(const T* p, int64_t n) {
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
template <class T>
ARMLLM_INLINE void store_first(T* p, Vf x, int64_t n) {
  T buffer[kLanes];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}

ARMLLM_INLINE Vf add(Vf a, Vf b) { return a + b; }
ARMLLM_INLINE Vf sub(Vf a, Vf b) { return a - b; }
ARMLLM_INLINE Vf mul(Vf a, Vf b) { return a * b; }
ARMLLM_INLINE Vf div(Vf a, Vf b) { return a / b; }
// a * b + c
ARMLLM_INLINE Vf fma(Vf a, Vf b, Vf c) {
#if ARMLLM_LANES == 16
  return (Vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif ARMLLM_LANES == 8
  return (Vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
// b when either is a NaN
ARMLLM_INLINE Vf max(Vf a, Vf b) { return a > b ? a : b; }
ARMLLM_INLINE Vf min(Vf a, Vf b) { return a < b ? a : b; }
// The low nine bits of each lane become sign and exponent.
ARMLLM_INLINE Vf exponent(Vf x) { return from_bits(bits(x) << 23); }

ARMLLM_INLINE float reduce_add(Vf x) {
  float lane[kLanes];
  store(lane, x);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] += lane[i + step];
  }
  return lane[0];
}
ARMLLM_INLINE float reduce_max(Vf x) {
  float lane[kLanes];
  store(lane, x);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lane[i] = lane[i + step] > lane[i] ? lane[i + step] : lane[i];
  }
  return lane[0];
}

// Lanes from `count` on become -infinity.
ARMLLM_INLINE Vf keep_first(Vf x, int64_t count) {
  int32_t index[kLanes];
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  Vi lane;
  memcpy(&lane, index, sizeof lane);
  const int32_t limit = count < 0 ? 0 : count > kLanes ? kLanes : static_cast<int32_t>(count);
  return lane < limit ? x : splat(-INFINITY);
}

// Elements 0, 2, 4, ... and 1, 3, 5, ... of 2 * kLanes.
ARMLLM_INLINE void load_pairs(const float* p, Vf& even, Vf& odd) {
  float a[kLanes], b[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    a[i] = p[2 * i];
    b[i] = p[2 * i + 1];
  }
  even = load(a);
  odd = load(b);
}
ARMLLM_INLINE void store_pairs(float* p, Vf even, Vf odd) {
  float a[kLanes], b[kLanes];
  store(a, even);
  store(b, odd);
  for (int i = 0; i < kLanes; ++i) {
    p[2 * i] = a[i];
    p[2 * i + 1] = b[i];
  }
}
ARMLLM_INLINE void load_pairs(const bfloat16* p, Vf& even, Vf& odd) {
  Vu x;
  memcpy(&x, p, sizeof x);
  even = from_bits(x << 16);
  odd = from_bits(x & 0xffff0000u);
}
ARMLLM_INLINE void store_pairs(bfloat16* p, Vf even, Vf odd) {
  const Vu x = bf16_bits(odd) << 16 | bf16_bits(even);
  memcpy(p, &x, sizeof x);
}

// Four consecutive floats, each of which multiplies a whole vector: Arm's by-element FMLA, x86's broadcast
// load.
using Quad = const float*;
ARMLLM_INLINE Quad load_quad(const float* p) { return p; }
template <int i>
ARMLLM_INLINE Vf fma_lane(Vf a, Quad q, Vf c) {
  return fma(a, splat(q[i]), c);
}
