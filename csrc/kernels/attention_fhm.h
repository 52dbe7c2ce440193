// Attention on a binary16 cache with FMLAL: products of two binary16 numbers, exact, added to floats. So
// nothing is widened: a load brings eight keys (or value elements), and each row costs two instructions for
// them. The query stays as it is stored and the scale waits for the logits; weights are rounded to binary16,
// times 2^14, so that only those below 2^-28 of the largest lose digits. The cache lies as in kv_cache.h.

namespace fmlal {

inline constexpr float kWeightScale = 0x1p14f;

struct Scratch {
  AttentionScratch base;
  float16* query;    // [kTileRows, head_dim]
  float16* weights;  // [kTileRows, kChunk]
};

ARMLLM_INLINE int64_t scratch_bytes(const KvCacheShape& shape) {
  return attention_scratch_bytes(shape) + kTileRows * kChunk * static_cast<int64_t>(sizeof(float16));
}

ARMLLM_INLINE Scratch scratch(const KvCacheShape& shape, void* memory) {
  const AttentionScratch base = attention_scratch(shape, memory);
  char* end = static_cast<char*>(memory) + attention_scratch_bytes(shape);
  return {base, reinterpret_cast<float16*>(base.query), reinterpret_cast<float16*>(end)};
}

ARMLLM_INLINE float16x8_t load_eight(const float16* p) { return vreinterpretq_f16_u16(vld1q_u16(&p->bits)); }
ARMLLM_INLINE float16x4_t load_four(const float16* p) { return vreinterpret_f16_u16(vld1_u16(&p->bits)); }

template <int i, int M, int V>
ARMLLM_INLINE void multiply_lane(Vf (&acc)[M][V], const float16x4_t (&q)[M], const float16* vectors,
                                 int64_t stride) {
  static_assert(V % 2 == 0, "eight elements are two vectors of floats");
  ARMLLM_UNROLL for (int v = 0; v < V; v += 2) {
    const float16x8_t k = load_eight(vectors + i * stride + v * kLanes);
    ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
      acc[m][v] = vfmlalq_lane_low_f16(acc[m][v], k, q[m], i);
      acc[m][v + 1] = vfmlalq_lane_high_f16(acc[m][v + 1], k, q[m], i);
    }
  }
}

// logits[m, 0..16) = q[m] . keys of one panel * scale.
template <int M>
ARMLLM_INLINE void panel_logits(const float16* q, const float16* keys, int64_t head_dim, float scale,
                                float* logits) {
  constexpr int kVectors = floor_power_of_two(kAccumulators / M, kPanel / kLanes);
  constexpr int kPhases = floor_power_of_two(kAccumulators / (M * kVectors), 4);
  const Vf s = splat(scale);
  for (int64_t first = 0; first < kPanel; first += kVectors * kLanes) {
    Vf acc[kPhases][M][kVectors];
    ARMLLM_UNROLL for (int p = 0; p < kPhases; ++p) {
      ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
        ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v)
          acc[p][m][v] = zero();
      }
    }
    const float16* k = keys + first;
    for (int64_t d = 0; d < head_dim; d += 4, k += 4 * kPanel) {
      ARMLLM_LOOP("logits", M);
      float16x4_t quad[M];
      ARMLLM_UNROLL for (int m = 0; m < M; ++m)
        quad[m] = load_four(q + m * head_dim + d);
      multiply_lane<0>(acc[0 % kPhases], quad, k, kPanel);
      multiply_lane<1>(acc[1 % kPhases], quad, k, kPanel);
      multiply_lane<2>(acc[2 % kPhases], quad, k, kPanel);
      multiply_lane<3>(acc[3 % kPhases], quad, k, kPanel);
    }
    ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
      ARMLLM_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vf x = acc[0][m][v];
        ARMLLM_UNROLL for (int p = 1; p < kPhases; ++p)
          x = add(x, acc[p][m][v]);
        store(logits + m * kChunk + first + v * kLanes, mul(x, s));
      }
    }
  }
}

// values[m, d0 .. d0 + V vectors) = values * factor[m] + weights[m, 0..n) . V[0..n, d0 ...).
template <int M, int V>
ARMLLM_INLINE void add_values(const float16* weights, const float16* const* panels, int64_t n, int64_t d0,
                              int64_t head_dim, const float* factor, float* values) {
  Vf acc[M][V];
  ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
    const Vf f = splat(factor[m]);
    ARMLLM_UNROLL for (int v = 0; v < V; ++v) {
      acc[m][v] = mul(load(values + m * head_dim + d0 + v * kLanes), f);
    }
  }
  for (int64_t j = 0; j < n; j += kPanel) {
    const float16* x = panels[j / kPanel] + d0;
    const int64_t end = n - j < kPanel ? n : j + kPanel;
    int64_t t = j;
    for (; t + 4 <= end; t += 4, x += 4 * head_dim) {
      ARMLLM_LOOP("values", M);
      float16x4_t quad[M];
      ARMLLM_UNROLL for (int m = 0; m < M; ++m)
        quad[m] = load_four(weights + m * kChunk + t);
      multiply_lane<0>(acc, quad, x, head_dim);
      multiply_lane<1>(acc, quad, x, head_dim);
      multiply_lane<2>(acc, quad, x, head_dim);
      multiply_lane<3>(acc, quad, x, head_dim);
    }
    // What lies behind the last token is anything, a NaN too: 0 * NaN is not 0, so it is never read.
    for (; t < end; ++t, x += head_dim) {
      float16x4_t one[M];
      ARMLLM_UNROLL for (int m = 0; m < M; ++m)
        one[m] = vreinterpret_f16_u16(vdup_n_u16(weights[m * kChunk + t].bits));
      multiply_lane<0>(acc, one, x, head_dim);
    }
  }
  ARMLLM_UNROLL for (int m = 0; m < M; ++m) {
    ARMLLM_UNROLL for (int v = 0; v < V; ++v)
      store(values + m * head_dim + d0 + v * kLanes, acc[m][v]);
  }
}

// Rows in tiles of kRowTile, the rest in one smaller tile; M counts down to their number.
template <int M>
ARMLLM_INLINE void rows_logits(const Scratch& s, int64_t row, int64_t rows, const float16* keys, int64_t j,
                               int64_t head_dim, float scale) {
  for (; rows - row >= M; row += M) {
    panel_logits<M>(s.query + row * head_dim, keys, head_dim, scale, s.base.logits + row * kChunk + j);
  }
  if constexpr (M > 1) {
    if (row < rows) rows_logits<M - 1>(s, row, rows, keys, j, head_dim, scale);
  }
}

template <int M>
ARMLLM_INLINE void rows_values(const Scratch& s, int64_t row, int64_t rows, const float16* const* panels,
                               int64_t n, int64_t head_dim, float* values) {
  constexpr int kVectors = floor_power_of_two(kAccumulators / M, 16);
  for (; rows - row >= M; row += M) {
    const float16* weights = s.weights + row * kChunk;
    const float* factor = s.base.factor + row;
    float* out = values + row * head_dim;
    int64_t d = 0;
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes) {
      add_values<M, kVectors>(weights, panels, n, d, head_dim, factor, out);
    }
    for (; d < head_dim; d += 8) add_values<M, 2>(weights, panels, n, d, head_dim, factor, out);
  }
  if constexpr (M > 1) {
    if (row < rows) rows_values<M - 1>(s, row, rows, panels, n, head_dim, values);
  }
}

// Times 2^14, as floats and rounded.
ARMLLM_INLINE void scale_weights(float* weights, int64_t n, float16* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const Vf w = mul(load(weights + i), splat(kWeightScale));
    store(weights + i, w);
    store(out + i, w);
  }
}

ARMLLM_INLINE void attention_split(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t split,
                                   const AttentionState& state, void* memory) {
  const int64_t head_dim = a.shape.head_dim, block_size = a.shape.block_size;
  const int64_t rows = tile.row_end - tile.row_begin;
  const Scratch s = scratch(a.shape, memory);
  for (int64_t r = 0; r < rows; ++r) {
    const float16* q = static_cast<const float16*>(a.query) +
                       row_offset(a, tile, tile.row_begin + r, a.query_token_stride, a.query_head_stride);
    memcpy(s.query + r * head_dim, q, static_cast<size_t>(head_dim) * sizeof(float16));
  }
  memset(state.values, 0, static_cast<size_t>(rows * head_dim) * sizeof(float));
  const float16* values[kChunk / kPanel];

  const auto fill = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    for (int64_t j = 0; j < n; j += kPanel) {
      const char* block = block_of(a, tile, begin + j);
      const int64_t offset = (begin + j) % block_size * head_dim;
      values[j / kPanel] = reinterpret_cast<const float16*>(block + a.layout.value_offset_bytes) + offset;
      rows_logits<kRowTile>(s, 0, rows, reinterpret_cast<const float16*>(block) + offset, j, head_dim,
                            a.scale);
    }
  };
  const auto add = [&](int64_t begin, int64_t n) ARMLLM_LAMBDA {
    const int64_t padded = (n + kPanel - 1) / kPanel * kPanel;
    for (int64_t r = 0; r < rows; ++r) {
      scale_weights(s.base.logits + r * kChunk, padded, s.weights + r * kChunk);
    }
    if (unseen_are_finite(a, tile, values, begin, n)) {
      rows_values<kRowTile>(s, 0, rows, values, n, head_dim, state.values);
    } else {
      each_row_values(a, tile, s.base, values, begin, n, state.values);
    }
  };
  online_softmax<kChunk, kPanel>(a, tile, split, state, s.base.logits, s.base.factor, fill, add);
  for (int64_t i = 0; i < rows * head_dim; i += kLanes) {
    store(state.values + i, mul(load(state.values + i), splat(1 / kWeightScale)));
  }
}

}  // namespace fmlal
