// Quantised products with SMMLA and USMMLA: 8 elements of two columns times 8 elements of two rows. Nibbles
// are stored with an offset of 8, so that they are unsigned; the integers start at what takes the offsets off
// again.

inline constexpr int64_t kRowChunk = 8, kRowsOfPair = 2, kPanelsOfRow = 2;
inline constexpr int64_t kMaxTileRows = 16;
inline constexpr const WeightLayout& kLayout = kColumns4x8Offset;
// The sums of groups need as many registers as the integers.
ARMLLM_INLINE int64_t matmul_tile_rows(int, bool grouped) { return grouped ? 12 : 16; }

#include "kernels/matmul.h"

// What int4 keeps beside the activations: what the integers of a group start at, [groups, pairs of the tile,
// 4] per tile, in the order of USMMLA's result: two columns, each with two rows. With groups they are floats'
// bits too, of 1.5 * 2^23 plus the sum of products: a subtraction then converts them, in one slot where SCVTF
// takes two. Exact below 2^22: a group of 128 reaches 128 * 127 * 128.
template <int bits>
ARMLLM_INLINE int64_t starts_bytes(const WeightShape& s, int64_t rows) {
  return bits == 4 ? round_up(rows, 2) / 2 * group_count(s) * 16 : 0;
}

// A single row of int4 needs three instructions per 16 bytes of weights, not two to take the nibbles apart
// and two to multiply. A byte b is 16 * high + low. Of the two rows of a pair one is h = b x_high - low
// x_high, which is 16 * high x_high, the other low x_low: USMMLA of b by (x_high, 0) and of low by (-x_high,
// x_low). This puts a row of 16 elements (x_low, 0, x_high, 0) into that order.
ARMLLM_INLINE void order_single_row(const MatmulArgs& a, int8_t* x, int32_t* starts) {
  const WeightShape& s = a.shape;
  const int32_t first = s.group_size == 0 ? 0 : kRounderBits;
  for (int64_t g = 0; g < group_count(s); ++g) {
    int32_t low_sum = 0, high_sum = 0;
    for (int64_t k = 0; k < group_length(s); k += 16) {
      const int8x16_t low = vld1q_s8(x), high = vld1q_s8(x + 16);
      low_sum += vaddlvq_s8(low);
      high_sum += vaddlvq_s8(high);
      vst1q_s8(x, high);
      vst1q_s8(x + 16, vcombine_s8(vneg_s8(vget_low_s8(high)), vget_low_s8(low)));
      x += 32;
    }
    starts[0] = starts[2] = first - 128 * high_sum;
    starts[1] = starts[3] = -8 * low_sum;
    starts += 4;
  }
}

template <int bits>
ARMLLM_INLINE void prepare(const MatmulArgs& a, int64_t begin, int64_t end) {
  const WeightShape& s = a.shape;
  const Activations x = Activations::at(a.activations, s, a.rows);
  if (bits == 8) {
    // SDOT wants a single row twice.
    if (a.rows == 1) {
      for (int64_t k = 0; k < padded_features(s); k += 8) memcpy(x.q + 2 * k + 8, x.q + 2 * k, 8);
    }
    return;
  }
  int32_t* starts = reinterpret_cast<int32_t*>(x.more);
  if (a.rows == 1) return order_single_row(a, x.q, starts);
  const Tiling tiling = Tiling::of<bits>(s, a.rows);
  const int32_t first = s.group_size == 0 ? 0 : kRounderBits;
  const int64_t groups = group_count(s), stop = end == a.rows ? round_up(end, 2) : end;
  for (int64_t r = begin; r < stop; ++r) {
    const int64_t tile = tiling.tile_of(r), top = tiling.first_row(tile),
                  rows = tiling.first_row(tile + 1) - top;
    const float* sums = x.sums + top * groups + (r - top);
    int32_t* to = starts + top * groups * 2 + (r - top) / 2 * 4 + r % 2;
    for (int64_t g = 0; g < groups; ++g) {
      to[0] = to[2] = first - 128 * static_cast<int32_t>(sums[g * rows]);
      to += rows * 2;
    }
  }
}

ARMLLM_INLINE int32x4_t add_product(int32x4_t sum, int8x16_t w, int8x16_t x) { return vmmlaq_s32(sum, w, x); }
ARMLLM_INLINE int32x4_t add_product(int32x4_t sum, uint8x16_t w, int8x16_t x) {
  return vusmmlaq_s32(sum, w, x);
}

// Constants that are loaded where they are used: the tiles leave no register for them.
alignas(16) static const int32_t kHighNibbles[4] = {-0x0f0f0f10, -0x0f0f0f10, -0x0f0f0f10, -0x0f0f0f10};
alignas(16) static const int32_t kSixteen[4] = {16, 16, 16, 16};
alignas(16) static const int32_t kRounders[4] = {kRounderBits, kRounderBits, kRounderBits, kRounderBits};

template <int bits>
struct Weights;
template <>
struct Weights<8> {
  using Vector = int8x16_t;
  template <bool crowded>
  static ARMLLM_MEMBER const uint8_t* load(const uint8_t* w, Vector (&block)[4]) {
    ARMLLM_UNROLL for (int i = 0; i < 4; ++i)
      block[i] = vld1q_s8(reinterpret_cast<const int8_t*>(w) + 16 * i);
    return w + 64;
  }
};
template <>
struct Weights<4> {
  using Vector = uint8x16_t;
  template <bool crowded>
  static ARMLLM_MEMBER const uint8_t* load(const uint8_t* w, Vector (&block)[4]) {
    const uint8x16_t mask = crowded ? vreinterpretq_u8_s32(reload(kHighNibbles, 0)) : vdupq_n_u8(0xf0);
    ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
      const uint8x16_t both = vld1q_u8(w + 16 * i);
      block[i] = vshlq_n_u8(both, 4);
      block[2 + i] = vandq_u8(both, mask);
    }
    return w + 32;
  }
};

// A pair's 8 elements at `x` + `offset` by those of four columns. The largest tiles leave a single register
// for activations, while compilers load many of them ahead, as if the core could not, and then spill sums.
#define ARMLLM_LOAD_AND_MULTIPLY(Weight, instruction)                                                   \
  ARMLLM_INLINE void load_and_multiply(int32x4_t(&sums)[2], Weight left, Weight right, const int8_t* x, \
                                       int offset) {                                                    \
    int8x16_t row;                                                                                      \
    __asm__ volatile("ldr %q0, [%5, %6]\n\t" instruction " %1.4s, %3.16b, %0.16b\n\t" instruction       \
                     " %2.4s, %4.16b, %0.16b"                                                           \
                     : "=&w"(row), "+w"(sums[0]), "+w"(sums[1])                                         \
                     : "w"(left), "w"(right), "r"(x), "i"(offset));                                     \
  }
ARMLLM_LOAD_AND_MULTIPLY(int8x16_t, "smmla")
ARMLLM_LOAD_AND_MULTIPLY(uint8x16_t, "usmmla")

// 16 elements of four columns and of `pairs` pairs of rows.
template <int bits, int pairs>
ARMLLM_INLINE void add_products(int32x4_t (&sums)[pairs][2], const uint8_t*& w, const int8_t*& x) {
  typename Weights<bits>::Vector block[4];
  constexpr bool kCrowded = pairs > 4;
  w = Weights<bits>::template load<kCrowded>(w, block);
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    if constexpr (kCrowded) {
      load_and_multiply(sums[r], block[0], block[1], x, 16 * r);
    } else {
      const int8x16_t first = vld1q_s8(x + 16 * r);
      sums[r][0] = add_product(sums[r][0], block[0], first);
      sums[r][1] = add_product(sums[r][1], block[1], first);
    }
  }
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    if constexpr (kCrowded) {
      load_and_multiply(sums[r], block[2], block[3], x, 16 * (pairs + r));
    } else {
      const int8x16_t second = vld1q_s8(x + 16 * (pairs + r));
      sums[r][0] = add_product(sums[r][0], block[2], second);
      sums[r][1] = add_product(sums[r][1], block[3], second);
    }
  }
  x += 32 * pairs;
}

ARMLLM_INLINE void store_pair(float* out, float32x4_t left, float32x4_t right) {
  vst1q_f32(out, vuzp1q_f32(left, right));
  vst1q_f32(out + 4, vuzp2q_f32(left, right));
}

template <int bits, int pairs>
ARMLLM_INLINE void channel_tile(const Product& p) {
  const uint8_t* w = p.weights;
  const int8_t* x = p.q;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more) + p.first_row * 2;
  int32x4_t sums[pairs][2];
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
    sums[r][0] = sums[r][1] = bits == 4 ? vld1q_s32(starts + 4 * r) : vdupq_n_s32(0);
  for (int64_t k = 0; k < p.features; k += 16) {
    ARMLLM_LOOP("channel", 2 * pairs * 1000 + 16);
    add_products<bits, pairs>(sums, w, x);
  }
  const float32x4_t scales = vld1q_f32(p.scales);
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
    store_pair(p.out + 8 * r, vmulq_f32(vcvtq_f32_s32(sums[r][0]), vzip1q_f32(scales, scales)),
               vmulq_f32(vcvtq_f32_s32(sums[r][1]), vzip2q_f32(scales, scales)));
  }
}

template <int bits, int pairs, int length>
ARMLLM_INLINE void grouped_tile(const Product& p) {
  const uint8_t* w = p.weights;
  const int8_t* x = p.q;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more) + p.first_row * p.groups * 2;
  float32x4_t out[pairs][2];
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
    out[r][0] = out[r][1] = vdupq_n_f32(0);
  for (int64_t g = 0; g < p.groups; ++g) {
    ARMLLM_LOOP("group", 2 * pairs * 1000 + length);
    int32x4_t sums[pairs][2];
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      const void* start = bits == 4 ? starts + 4 * r : kRounders;
      sums[r][0] = reload(start, 0);
      sums[r][1] = reload(start, 0);
    }
    starts += 4 * pairs;
    ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
      add_products<bits, pairs>(sums, w, x);
    const float32x4_t scales = vld1q_f32(p.scales + 4 * g);
    const float32x4_t rounder =
        pairs > 4 ? vreinterpretq_f32_s32(reload(kRounders, 0)) : vdupq_n_f32(kRounder);
    const float32x4_t left = vzip1q_f32(scales, scales), right = vzip2q_f32(scales, scales);
    ARMLLM_UNROLL for (int r = 0; r < pairs; ++r) {
      out[r][0] = vfmaq_f32(out[r][0], vsubq_f32(vreinterpretq_f32_s32(sums[r][0]), rounder), left);
      out[r][1] = vfmaq_f32(out[r][1], vsubq_f32(vreinterpretq_f32_s32(sums[r][1]), rounder), right);
    }
  }
  ARMLLM_UNROLL for (int r = 0; r < pairs; ++r)
    store_pair(p.out + 8 * r, out[r][0], out[r][1]);
}

// A single row of int8: SDOT of 8 elements of two columns at a time, both halves of the sum apart. length 0:
// one group of all features.
template <int panels, int length>
ARMLLM_INLINE void single_row_w8(const Product& p) {
  constexpr int kParts = length == 32 ? 1 : 2;
  const int64_t groups = p.groups;
  const int8_t *w[panels], *x = p.q;
  int32x4_t sums[panels][2][kParts];
  const float* scales[panels];
  float32x4_t out[panels];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = reinterpret_cast<const int8_t*>(p.weights + j * p.panel_bytes);
    scales[j] = of_panel(p.scales, p, j);
    out[j] = vdupq_n_f32(0);
  }
  const auto start = [&](int32x4_t first) __attribute__((always_inline)) {
    ARMLLM_UNROLL for (int i = 0; i < 2 * panels; ++i) {
      sums[i / 2][i % 2][kParts - 1] = vdupq_n_s32(0);
      sums[i / 2][i % 2][0] = first;
    }
  };
  const auto add_16 = [&]() __attribute__((always_inline)) {
    const int8x16_t first = vld1q_s8(x), second = vld1q_s8(x + 16);
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      ARMLLM_UNROLL for (int n = 0; n < 2; ++n) {
        sums[j][n][0] = vdotq_s32(sums[j][n][0], vld1q_s8(w[j] + 16 * n), first);
        int32x4_t& sum = sums[j][n][kParts - 1];
        sum = vdotq_s32(sum, vld1q_s8(w[j] + 32 + 16 * n), second);
      }
      w[j] += 64;
    }
    x += 32;
  };
  const auto whole = [&](int j) __attribute__((always_inline)) {
    if constexpr (kParts == 1) return vpaddq_s32(sums[j][0][0], sums[j][1][0]);
    return vpaddq_s32(vaddq_s32(sums[j][0][0], sums[j][0][1]), vaddq_s32(sums[j][1][0], sums[j][1][1]));
  };
  if constexpr (length == 0) {
    start(vdupq_n_s32(0));
    for (int64_t k = 0; k < p.features; k += 16) {
      ARMLLM_LOOP("channel", 1016);
      add_16();
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
      out[j] = vmulq_f32(vcvtq_f32_s32(whole(j)), vld1q_f32(scales[j]));
  } else {
    // Two neighbouring sums become one: the first of them starts at what makes it a float.
    const int32x4_t first_rounders = vreinterpretq_s32_s64(vdupq_n_s64(kRounderBits));
    for (int64_t g = 0; g < groups; ++g) {
      ARMLLM_LOOP("group", 1000 + length);
      start(first_rounders);
      ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
        add_16();
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(whole(j)), vdupq_n_f32(kRounder));
        out[j] = vfmaq_f32(out[j], sum, vld1q_f32(scales[j] + 4 * g));
      }
    }
  }
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
    vst1q_f32(p.out + 8 * j, out[j]);
}

// See order_single_row. length 0: one group of all features.
template <int panels, int length>
ARMLLM_INLINE void single_row_w4(const Product& p) {
  const uint8_t* w[panels];
  const int8_t* x = p.q;
  const int32_t* starts = reinterpret_cast<const int32_t*>(p.more);
  const uint8x16_t low = vdupq_n_u8(15);
  const int32x4_t sixteen = reload(kSixteen, 0);  // or it becomes a shift and an addition
  float32x4_t out[panels];
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
    w[j] = p.weights + j * p.panel_bytes;
    out[j] = vdupq_n_f32(0);
  }
  const float* scales = p.scales;
  const auto add_16 = [&](int32x4_t(&sums)[panels][2], int32x4_t(&more)[panels][2])
                          __attribute__((always_inline)) {
                            const int8x16_t of_bytes = vld1q_s8(x), of_low = vld1q_s8(x + 16);
                            ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
                              ARMLLM_UNROLL for (int n = 0; n < 2; ++n) {
                                const uint8x16_t bytes = vld1q_u8(w[j] + 16 * n);
                                sums[j][n] = vusmmlaq_s32(sums[j][n], bytes, of_bytes);
                                more[j][n] = vusmmlaq_s32(more[j][n], vandq_u8(bytes, low), of_low);
                              }
                              w[j] += 32;
                            }
                            x += 32;
                          };
  const auto whole = [&](const int32x4_t(&sums)[2]) __attribute__((always_inline)) {
    return vmlaq_s32(vuzp1q_s32(sums[0], sums[1]), vuzp2q_s32(sums[0], sums[1]), sixteen);
  };
  if constexpr (length == 0) {
    int32x4_t sums[panels][2], more[panels][2];
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      sums[j][0] = sums[j][1] = vld1q_s32(starts);
      more[j][0] = more[j][1] = vdupq_n_s32(0);
    }
    for (int64_t k = 0; k < p.features; k += 16) {
      ARMLLM_LOOP("channel", 1016);
      add_16(sums, more);
    }
    ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
      ARMLLM_UNROLL for (int n = 0; n < 2; ++n)
        sums[j][n] = vaddq_s32(sums[j][n], more[j][n]);
      out[j] = vmulq_f32(vcvtq_f32_s32(whole(sums[j])), vld1q_f32(of_panel(scales, p, j)));
    }
  } else {
    for (int64_t g = 0; g < p.groups; ++g) {
      ARMLLM_LOOP("group", 1000 + length);
      int32x4_t sums[panels][2];
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        sums[j][0] = reload(starts, 0);
        sums[j][1] = reload(starts, 0);
      }
      starts += 4;
      ARMLLM_UNROLL for (int k = 0; k < length; k += 16)
        add_16(sums, sums);
      ARMLLM_UNROLL for (int j = 0; j < panels; ++j) {
        const float32x4_t sum = vsubq_f32(vreinterpretq_f32_s32(whole(sums[j])), vdupq_n_f32(kRounder));
        out[j] = vfmaq_f32(out[j], sum, vld1q_f32(of_panel(scales, p, j)));
      }
      scales += 4;
    }
  }
  ARMLLM_UNROLL for (int j = 0; j < panels; ++j)
    vst1q_f32(p.out + 8 * j, out[j]);
}

template <int bits, int panels, int length>
ARMLLM_INLINE void single_row_of(const Product& p) {
  if constexpr (bits == 8) {
    single_row_w8<panels, length>(p);
  } else {
    single_row_w4<panels, length>(p);
  }
}
template <int bits, int panels>
ARMLLM_INLINE void single_row(const Product& p) {
  if (!p.grouped) return single_row_of<bits, panels, 0>(p);
  if (p.group == 32) return single_row_of<bits, panels, 32>(p);
  if (p.group == 64) return single_row_of<bits, panels, 64>(p);
  single_row_of<bits, panels, 128>(p);
}

template <int bits, int pairs>
ARMLLM_INLINE void tile_of(const Product& p) {
  if constexpr (pairs <= 6) {
    if (p.grouped && p.group == 32) return grouped_tile<bits, pairs, 32>(p);
    if (p.grouped && p.group == 64) return grouped_tile<bits, pairs, 64>(p);
    if (p.grouped) return grouped_tile<bits, pairs, 128>(p);
  }
  channel_tile<bits, pairs>(p);
}

template <int bits>
ARMLLM_INLINE void any_tile(const Product& p) {
  if (p.single) {
    if (p.panels == 2) {
      single_row<bits, 2>(p);
    } else {
      single_row<bits, 1>(p);
    }
  } else {
    switch (p.rows) {
      case 2:
        tile_of<bits, 1>(p);
        break;
      case 4:
        tile_of<bits, 2>(p);
        break;
      case 6:
        tile_of<bits, 3>(p);
        break;
      case 8:
        tile_of<bits, 4>(p);
        break;
      case 10:
        tile_of<bits, 5>(p);
        break;
      case 12:
        tile_of<bits, 6>(p);
        break;
      case 14:
        tile_of<bits, 7>(p);
        break;
      default:
        tile_of<bits, 8>(p);
    }
  }
  add_zero_points(p, bits == 4 ? 16.0f : 1.0f);
}

static ARMLLM_ENTRY void w8a8_tile(const Product& p) { any_tile<8>(p); }
static ARMLLM_ENTRY void w4a8_tile(const Product& p) { any_tile<4>(p); }

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile, starts_bytes, prepare)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile, starts_bytes, prepare)
