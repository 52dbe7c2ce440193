// Quantised products with SDOT by lane: four elements of four columns times four elements of a row.

inline constexpr int64_t kPanelColumns = 4, kRun = 4, kRowChunk = 16, kRowsOfPair = 1, kMaxTileRows = 16;
inline constexpr int kNibbles = 0;
inline constexpr const char* kLayout = "columns4x4";
// The sums of groups need as many registers as the integers.
ARMLLM_INLINE int64_t matmul_tile_rows(int, bool grouped) { return grouped ? 12 : 16; }

#include "kernels/matmul.h"

// 16 elements of four columns, four by four. Both nibbles of a byte are used 16 times too large, since a mask
// or a shift alone gives that.
template <int bits>
ARMLLM_INLINE const uint8_t* load_block(const uint8_t* w, int8x16_t (&block)[4]) {
  const int8_t* p = reinterpret_cast<const int8_t*>(w);
  if constexpr (bits == 8) {
    ARMLLM_UNROLL for (int i = 0; i < 4; ++i)
      block[i] = vld1q_s8(p + 16 * i);
    return w + 64;
  } else {
    ARMLLM_UNROLL for (int i = 0; i < 2; ++i) {
      const int8x16_t both = vld1q_s8(p + 16 * i);
      block[2 * i] = vshlq_n_s8(both, 4);
      block[2 * i + 1] = vandq_s8(both, vdupq_n_s8(-16));
    }
    return w + 32;
  }
}

template <int rows>
ARMLLM_INLINE void add_products(int32x4_t (&sums)[rows], const int8x16_t (&block)[4], const int8_t* x) {
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
    const int8x16_t row = vld1q_s8(x + 16 * r);
    sums[r] = vdotq_laneq_s32(sums[r], block[0], row, 0);
    sums[r] = vdotq_laneq_s32(sums[r], block[1], row, 1);
    sums[r] = vdotq_laneq_s32(sums[r], block[2], row, 2);
    sums[r] = vdotq_laneq_s32(sums[r], block[3], row, 3);
  }
}

template <int bits, int rows>
ARMLLM_INLINE void channel_tile(const Product& p) {
  const uint8_t* w = p.weights;
  const int8_t* x = p.q;
  int32x4_t sums[rows];
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
    sums[r] = vdupq_n_s32(0);
  for (int64_t k = 0; k < p.features; k += 16) {
    ARMLLM_LOOP("channel", rows);
    int8x16_t block[4];
    w = load_block<bits>(w, block);
    add_products<rows>(sums, block, x);
    x += 16 * rows;
  }
  const float32x4_t scales = vld1q_f32(p.scales);
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
    vst1q_f32(p.out + 4 * r, vmulq_f32(vcvtq_f32_s32(sums[r]), scales));
}

// Integers start at the bits of 1.5 * 2^23, where a float's last bit counts 1: as floats they are off by just
// that number, which a subtraction mends, in one slot where SCVTF takes two. Exact below 2^22: a group of 128
// reaches 128 * 127 * 128.
alignas(16) static const int32_t kStart[4] = {kRounderBits, kRounderBits, kRounderBits, kRounderBits};
template <int rows, int length>
ARMLLM_INLINE void grouped_tile(const Product& p) {
  const uint8_t* w = p.weights;
  const int8_t* x = p.q;
  float32x4_t out[rows];
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
    out[r] = vdupq_n_f32(0);
  for (int64_t g = 0; g < p.groups; ++g) {
    ARMLLM_LOOP("group", rows * 1000 + length);
    int32x4_t sums[rows];
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
      sums[r] = reload(kStart);
    ARMLLM_UNROLL for (int k = 0; k < length; k += 16) {
      int8x16_t block[4];
      w = load_block<4>(w, block);
      add_products<rows>(sums, block, x);
      x += 16 * rows;
    }
    const float32x4_t scales = vld1q_f32(p.scales + 4 * g), rounder = vdupq_n_f32(kRounder);
    ARMLLM_UNROLL for (int r = 0; r < rows; ++r) {
      out[r] = vfmaq_f32(out[r], vsubq_f32(vreinterpretq_f32_s32(sums[r]), rounder), scales);
    }
  }
  ARMLLM_UNROLL for (int r = 0; r < rows; ++r)
    vst1q_f32(p.out + 4 * r, out[r]);
}

template <int rows>
ARMLLM_INLINE void grouped_tile(const Product& p) {
  if (p.group == 32) {
    grouped_tile<rows, 32>(p);
  } else if (p.group == 64) {
    grouped_tile<rows, 64>(p);
  } else {
    grouped_tile<rows, 128>(p);
  }
}

template <int bits>
ARMLLM_INLINE void channel_tile(const Product& p) {
  switch (p.rows) {
    case 1:
      channel_tile<bits, 1>(p);
      break;
    case 2:
      channel_tile<bits, 2>(p);
      break;
    case 3:
      channel_tile<bits, 3>(p);
      break;
    case 4:
      channel_tile<bits, 4>(p);
      break;
    case 5:
      channel_tile<bits, 5>(p);
      break;
    case 6:
      channel_tile<bits, 6>(p);
      break;
    case 7:
      channel_tile<bits, 7>(p);
      break;
    case 8:
      channel_tile<bits, 8>(p);
      break;
    case 9:
      channel_tile<bits, 9>(p);
      break;
    case 10:
      channel_tile<bits, 10>(p);
      break;
    case 11:
      channel_tile<bits, 11>(p);
      break;
    case 12:
      channel_tile<bits, 12>(p);
      break;
    case 13:
      channel_tile<bits, 13>(p);
      break;
    case 14:
      channel_tile<bits, 14>(p);
      break;
    case 15:
      channel_tile<bits, 15>(p);
      break;
    default:
      channel_tile<bits, 16>(p);
  }
}
static ARMLLM_ENTRY void w8a8_tile(const Product& p) {
  channel_tile<8>(p);
  add_zero_points(p, 1.0f);
}
static ARMLLM_ENTRY void w4a8_tile(const Product& p) {
  if (p.groups == 1 && p.group == p.features) {
    channel_tile<4>(p);
  } else {
    switch (p.rows) {
      case 1:
        grouped_tile<1>(p);
        break;
      case 2:
        grouped_tile<2>(p);
        break;
      case 3:
        grouped_tile<3>(p);
        break;
      case 4:
        grouped_tile<4>(p);
        break;
      case 5:
        grouped_tile<5>(p);
        break;
      case 6:
        grouped_tile<6>(p);
        break;
      case 7:
        grouped_tile<7>(p);
        break;
      case 8:
        grouped_tile<8>(p);
        break;
      case 9:
        grouped_tile<9>(p);
        break;
      case 10:
        grouped_tile<10>(p);
        break;
      case 11:
        grouped_tile<11>(p);
        break;
      default:
        grouped_tile<12>(p);
    }
  }
  add_zero_points(p, 16.0f);
}

ARMLLM_MATMUL_ENTRIES(matmul_w8a8, 8, 1.0f, w8a8_tile)
ARMLLM_MATMUL_ENTRIES(matmul_w4a8, 4, 0.0625f, w4a8_tile)
