// dense.h for bfloat16 with the tiles of AMX (Intel SDM volume 1, chapter 18): 16 rows of weights, as they
// lie, by 16 rows of activations, 32 elements of each at a time. The activations lie in pairs of elements,
// and the sums of a tile come out one column of the result after another. TDPBF16PS takes subnormal numbers
// for zero.

namespace dense_amx {

inline constexpr int64_t kTileRows = 16, kBlock = 16, kColumns = 4 * kBlock, kChunk = 32;

ARMLLM_INLINE int64_t padded_features(const WeightShape& s) {
  return (s.in_features + kChunk - 1) / kChunk * kChunk;
}
template <class T>
ARMLLM_INLINE int64_t panel_bytes(const WeightShape& s) {
  return kColumns * s.in_features * static_cast<int64_t>(sizeof(T));
}
ARMLLM_INLINE int64_t activation_bytes(const WeightShape& s, int64_t rows) {
  return rows * padded_features(s) * static_cast<int64_t>(sizeof(bfloat16));
}
ARMLLM_INLINE int64_t tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
ARMLLM_INLINE int64_t rows_of_tile(const MatmulArgs& a, int64_t first_row) {
  return a.rows - first_row < kTileRows ? a.rows - first_row : kTileRows;
}

ARMLLM_INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1);
}
// 32 elements as bfloat16, the first n of them read, the others zero.
ARMLLM_INLINE __m512i load_chunk(const bfloat16* p, int64_t n) {
  if (n >= kChunk) return _mm512_loadu_si512(p);
  return _mm512_maskz_loadu_epi16((1u << n) - 1, p);
}
ARMLLM_INLINE __m512i load_chunk(const float* p, int64_t n) {
  const __m512 low = _mm512_maskz_loadu_ps(first_lanes(n), p);
  const __m512 high = n > 16 ? _mm512_maskz_loadu_ps(first_lanes(n - 16), p + 16) : _mm512_setzero_ps();
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// Rows become columns.
ARMLLM_INLINE void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  ARMLLM_UNROLL for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(r[i], r[i + 1]), b = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                  d = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(a, c);
    t[i + 1] = _mm512_unpackhi_epi64(a, c);
    t[i + 2] = _mm512_unpacklo_epi64(b, d);
    t[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
  ARMLLM_UNROLL for (int i = 0; i < 4;
                     ++i) {  // t[4 g + i]: columns i, i + 4, i + 8, i + 12 of rows 4 g to 4 g + 3
    const __m512i a = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88),
                  b = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88),
                  d = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    r[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// Tile by tile [features / 2, rows of the tile, 2].
template <class T, class RowAt>
ARMLLM_INLINE void put(const MatmulArgs& a, int64_t begin, int64_t end, const RowAt& row_at) {
  const int64_t n = a.shape.in_features;
  for (int64_t row = begin; row < end;) {
    const int64_t first = row / kTileRows * kTileRows, rows = rows_of_tile(a, first);
    bfloat16* to = static_cast<bfloat16*>(a.activations) + first * padded_features(a.shape);
    if (row == first && end - row >= kTileRows) {
      const T* x[16];
      for (int i = 0; i < 16; ++i) x[i] = row_at(row + i);
      for (int64_t k = 0; k < n; k += kChunk, to += 16 * kChunk) {
        __m512i r[16];
        ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
          r[i] = load_chunk(x[i] + k, n - k);
        transpose(r);
        ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
          _mm512_storeu_si512(to + i * kChunk, r[i]);
      }
      row += 16;
    } else {
      const T* x = row_at(row);
      to += 2 * (row - first);
      for (int64_t k = 0; k < n; k += kChunk, to += rows * kChunk) {
        uint32_t pairs[16];
        _mm512_storeu_si512(pairs, load_chunk(x + k, n - k));
        for (int64_t i = 0; i < 16; ++i) memcpy(to + 2 * i * rows, pairs + i, 4);
      }
      ++row;
    }
  }
}
template <class T>
ARMLLM_INLINE void put_rows(const MatmulArgs& a, int64_t begin, int64_t end) {
  const auto put_of = [&](auto zero) ARMLLM_LAMBDA {
    using X = decltype(zero);
    put<X>(a, begin, end,
           [&](int64_t r) ARMLLM_LAMBDA { return static_cast<const X*>(a.x) + r * a.x_stride; });
  };
  if (a.float_rows) {
    put_of(float{});
  } else {
    put_of(T{});
  }
}
template <class T>
ARMLLM_INLINE void gather(const MatmulArgs& a, const GatherArgs& from, int64_t begin, int64_t end) {
  put<T>(a, begin, end, [&](int64_t r) ARMLLM_LAMBDA {
    return static_cast<const T*>(from.rows) + from.ids[r] * from.stride;
  });
}

// Tiles 0 to 3 are sums [rows of weights, rows of activations], tile 4 activations, 5 to 7 weights.
ARMLLM_INLINE void configure(int64_t weight_rows, int64_t rows) {
  struct alignas(64) {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t column_bytes[16] = {};
    uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; ++i) {
    shape.rows[i] = static_cast<uint8_t>(i == 4 ? 16 : weight_rows);
    shape.column_bytes[i] = static_cast<uint16_t>(i <= 4 ? 4 * rows : 64);
  }
  _tile_loadconfig(&shape);
}

// Weights' elements behind the last whole chunk, with zeros after them.
ARMLLM_INLINE void copy_rest(bfloat16* to, const bfloat16* w, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r) _mm512_storeu_si512(to + r * kChunk, load_chunk(w + r * stride, n));
}

// sums[64, 16], or [64] for one row: the products of 64 rows of weights and a tile of activations.
ARMLLM_INLINE void multiply_four(const bfloat16* w, int64_t n, const bfloat16* x, int64_t rows, float* sums) {
  const int64_t stride = 2 * n, row_bytes = 4 * rows, block = kBlock * n;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  int64_t k = 0;
  for (; k + kChunk <= n; k += kChunk, x += kChunk * rows) {
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(5, w + k, stride);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, w + k + block, stride);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(7, w + k + 2 * block, stride);
    _tile_dpbf16ps(2, 7, 4);
    _tile_loadd(5, w + k + 3 * block, stride);
    _tile_dpbf16ps(3, 5, 4);
  }
  if (k < n) {
    alignas(64) bfloat16 rest[kColumns * kChunk];
    copy_rest(rest, w + k, n, kColumns, n - k);
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(5, rest, 2 * kChunk);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, rest + kBlock * kChunk, 2 * kChunk);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(7, rest + 2 * kBlock * kChunk, 2 * kChunk);
    _tile_dpbf16ps(2, 7, 4);
    _tile_loadd(5, rest + 3 * kBlock * kChunk, 2 * kChunk);
    _tile_dpbf16ps(3, 5, 4);
  }
  const int64_t step = rows == 1 ? 1 : 16;
  _tile_stored(0, sums, 4 * step);
  _tile_stored(1, sums + kBlock * step, 4 * step);
  _tile_stored(2, sums + 2 * kBlock * step, 4 * step);
  _tile_stored(3, sums + 3 * kBlock * step, 4 * step);
}
// The same for the `weight_rows` that the tiles are configured for, 16 at most.
ARMLLM_INLINE void multiply_one(const bfloat16* w, int64_t weight_rows, int64_t n, const bfloat16* x,
                                int64_t rows, float* sums) {
  _tile_zero(0);
  int64_t k = 0;
  for (; k + kChunk <= n; k += kChunk, x += kChunk * rows) {
    _tile_loadd(4, x, 4 * rows);
    _tile_loadd(5, w + k, 2 * n);
    _tile_dpbf16ps(0, 5, 4);
  }
  if (k < n) {
    alignas(64) bfloat16 rest[kBlock * kChunk];
    copy_rest(rest, w + k, n, weight_rows, n - k);
    _tile_loadd(4, x, 4 * rows);
    _tile_loadd(5, rest, 2 * kChunk);
    _tile_dpbf16ps(0, 5, 4);
  }
  _tile_stored(0, sums, rows == 1 ? 4 : 64);
}

// One row's sums for up to 16 columns.
ARMLLM_INLINE void put_sums(const MatmulArgs& a, int64_t row, int64_t column, __m512 sums, __mmask16 there) {
  const int64_t at = row * a.out_stride + column;
  if (a.float_rows) {
    _mm512_mask_storeu_ps(static_cast<float*>(a.out) + at, there, sums);
    return;
  }
  if (a.bias != nullptr) {
    const __m256i bias = _mm256_maskz_loadu_epi16(there, static_cast<const bfloat16*>(a.bias) + column);
    sums = _mm512_add_ps(sums, (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16));
  }
  _mm256_mask_storeu_epi16(static_cast<bfloat16*>(a.out) + at, there, (__m256i)_mm512_cvtneps_pbh(sums));
}
ARMLLM_INLINE void finish(const MatmulArgs& a, int64_t first_row, int64_t rows, int64_t column,
                          int64_t columns, const float* sums) {
  for (int64_t c = 0; c < columns; c += kBlock) {
    const __mmask16 there = first_lanes(columns - c);
    if (rows == 1) {
      put_sums(a, first_row, column + c, _mm512_load_ps(sums + c), there);
      continue;
    }
    __m512i r[16];
    ARMLLM_UNROLL for (int i = 0; i < 16; ++i)
      r[i] = _mm512_load_si512(sums + (c + i) * 16);
    transpose(r);
    for (int64_t i = 0; i < rows; ++i) put_sums(a, first_row + i, column + c, (__m512)r[i], there);
  }
}

template <class T>
ARMLLM_INLINE void multiply(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, int64_t panel_begin,
                            int64_t panel_end) {
  const int64_t n = a.shape.in_features, out = a.shape.out_features;
  alignas(64) float sums[kColumns * 16] = {};
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * kTileRows, rows = rows_of_tile(a, first);
    const T* x = static_cast<const T*>(a.activations) + first * padded_features(a.shape);
    configure(kBlock, rows);
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
      const int64_t column = panel * kColumns, left = out - column;
      const T* w = static_cast<const T*>(a.weight) + column * n;
      if (left >= kColumns) {
        multiply_four(w, n, x, rows, sums);
        finish(a, first, rows, column, kColumns, sums);
        continue;
      }
      for (int64_t c = 0; c < left; c += kBlock) {
        const int64_t weight_rows = left - c < kBlock ? left - c : kBlock;
        if (weight_rows < kBlock) configure(weight_rows, rows);
        multiply_one(w + c * n, weight_rows, n, x, rows, sums);
        finish(a, first, rows, column + c, weight_rows, sums);
      }
    }
  }
  _tile_release();
}

}  // namespace dense_amx
