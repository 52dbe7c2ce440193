// The parts of attention that don't depend on the cache's layout: masks, online softmax, merging, the output.

// How many keys, counted from the sequence's start, row r of the tile may see.
ARMLLM_INLINE int64_t visible_keys(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  const int64_t queries = a.query_start_loc[tile.sequence + 1] - a.query_start_loc[tile.sequence];
  return a.seq_lens[tile.sequence] - queries + row / group + 1;
}

// The offset of a row's head in query or out.
ARMLLM_INLINE int64_t row_offset(const PagedAttentionArgs& a, const AttentionTile& tile, int64_t row,
                                 int64_t token_stride, int64_t head_stride) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  const int64_t token = a.query_start_loc[tile.sequence] + row / group;
  return token * token_stride + (tile.kv_head * group + row % group) * head_stride;
}

// exp(m - largest) where both may be -infinity.
ARMLLM_INLINE float rescale(float m, float largest) {
  if (m == -INFINITY) return 0.0f;
  return reduce_max(exp(splat(m - largest)));
}

// Four vectors at a time, each with its own running result: exp has a long latency, and a sum should not wait
// for it.
inline constexpr int64_t kSoftmaxStep = 4 * kLanes;

ARMLLM_INLINE float largest_of(const float* x, int64_t n) {
  Vf top[4];
  ARMLLM_UNROLL for (int v = 0; v < 4; ++v)
    top[v] = splat(-INFINITY);
  int64_t i = 0;
  for (; i + kSoftmaxStep <= n; i += kSoftmaxStep) {
    ARMLLM_UNROLL for (int v = 0; v < 4; ++v)
      top[v] = max(top[v], load(x + i + v * kLanes));
  }
  for (; i < n; i += kLanes) top[0] = max(top[0], load(x + i));
  return reduce_max(max(max(top[0], top[1]), max(top[2], top[3])));
}

// x = exp(x - base); returns the sum.
ARMLLM_INLINE float exponentials(float* x, int64_t n, Vf base) {
  Vf total[4];
  ARMLLM_UNROLL for (int v = 0; v < 4; ++v)
    total[v] = zero();
  int64_t i = 0;
  for (; i + kSoftmaxStep <= n; i += kSoftmaxStep) {
    ARMLLM_UNROLL for (int v = 0; v < 4; ++v) {
      const Vf p = exp(sub(load(x + i + v * kLanes), base));
      store(x + i + v * kLanes, p);
      total[v] = add(total[v], p);
    }
  }
  for (; i < n; i += kLanes) {
    const Vf p = exp(sub(load(x + i), base));
    store(x + i, p);
    total[0] = add(total[0], p);
  }
  return reduce_add(add(add(total[0], total[1]), add(total[2], total[3])));
}

// logits[0, n) (n <= padded, a multiple of kLanes) become exp(logit - largest), the rest 0; updates largest
// and sum and returns the factor for what was summed before.
ARMLLM_INLINE float softmax_row(float* logits, int64_t n, int64_t padded, float& largest, float& sum) {
  if (n <= 0) {
    for (int64_t i = 0; i < padded; i += kLanes) store(logits + i, zero());
    return 1.0f;
  }
  for (int64_t i = n / kLanes * kLanes; i < padded; i += kLanes) {
    store(logits + i, keep_first(load(logits + i), n - i));
  }
  const float highest = largest_of(logits, padded);
  const float now = highest > largest ? highest : largest;
  const float factor = rescale(largest, now);
  const float total = exponentials(logits, padded, splat(now == -INFINITY ? 0.0f : now));
  largest = now;
  sum = sum * factor + total;
  return factor;
}

ARMLLM_INLINE void attention_merge(const PagedAttentionArgs& a, const AttentionTile& tile,
                                   const AttentionState& into, const AttentionState& next) {
  const int64_t head_dim = a.shape.head_dim;
  for (int64_t r = 0; r < tile.row_end - tile.row_begin; ++r) {
    const float largest = next.largest[r] > into.largest[r] ? next.largest[r] : into.largest[r];
    const float mine = rescale(into.largest[r], largest), theirs = rescale(next.largest[r], largest);
    into.largest[r] = largest;
    into.sum[r] = into.sum[r] * mine + next.sum[r] * theirs;
    float* x = into.values + r * head_dim;
    const float* y = next.values + r * head_dim;
    const Vf f = splat(mine), g = splat(theirs);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(x + d, fma(load(y + d), g, mul(load(x + d), f)));
    if (d < head_dim) {
      const int64_t n = head_dim - d;
      store_first(x + d, fma(load_first(y + d, n), g, mul(load_first(x + d, n), f)), n);
    }
  }
}

template <class T>
ARMLLM_INLINE void attention_finish(const PagedAttentionArgs& a, const AttentionTile& tile,
                                    const AttentionState& state) {
  const int64_t head_dim = a.shape.head_dim;
  for (int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const int64_t r = row - tile.row_begin;
    const Vf scale = splat(1.0f / state.sum[r]);
    const float* x = state.values + r * head_dim;
    T* out = static_cast<T*>(a.out) + row_offset(a, tile, row, a.out_token_stride, a.out_head_stride);
    int64_t d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) store(out + d, mul(load(x + d), scale));
    if (d < head_dim) store_first(out + d, mul(load_first(x + d, head_dim - d), scale), head_dim - d);
  }
}
