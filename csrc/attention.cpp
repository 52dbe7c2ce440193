// The attention driver: tiles of query rows, splits of the keys, and who computes which.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "checks.h"
#include "workspace.h"

namespace armllm {

namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Work {
  AttentionTile tile;
  int64_t first_split, splits;  // what lies before the window or chunk is left out
  int64_t first_state;          // where the states of its splits begin, when splits are computed apart
};

// The first key that a query at this position sees.
int64_t first_key(const PagedAttentionArgs& a, int64_t position) {
  if (a.chunk_size != 0) return position / a.chunk_size * a.chunk_size;
  return position < a.sliding_window ? 0 : position - a.sliding_window + 1;
}

// The end of the keys that it sees in a sequence of this length.
int64_t end_of_keys(const PagedAttentionArgs& a, int64_t position, int64_t length) {
  if (!a.bidirectional) return position + 1;
  return length - position < a.sliding_window ? length : position + a.sliding_window;
}

void check(const PagedAttentionArgs& a, int64_t num_blocks, int64_t num_tokens) {
  check_query_start_loc(a.query_start_loc, a.num_seqs, num_tokens, "query");
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t queries = static_cast<int64_t>(a.query_start_loc[s + 1]) - a.query_start_loc[s];
    const int64_t length = a.seq_lens[s];
    if (length < queries) {
      throw std::invalid_argument(item("seq_lens", s, length) + ", but the sequence has " +
                                  std::to_string(queries) + " query tokens");
    }
    if (queries == 0) continue;
    const int64_t blocks = (length + a.shape.block_size - 1) / a.shape.block_size;
    if (blocks > a.max_blocks) {
      throw std::invalid_argument(item("seq_lens", s, length) + ", more than the " +
                                  std::to_string(a.max_blocks) + " blocks per sequence in block_tables hold");
    }
    const int32_t* table = a.block_tables + s * a.block_table_stride;
    for (int64_t b = first_key(a, length - queries) / a.shape.block_size; b < blocks; ++b) {
      if (table[b] < 0 || table[b] >= num_blocks) {
        throw std::invalid_argument("block_tables[" + std::to_string(s) + ", " + std::to_string(b) + "] is " +
                                    std::to_string(table[b]) + ", but the cache has " +
                                    std::to_string(num_blocks) + " blocks");
      }
    }
  }
}

std::vector<Work> plan(const PagedAttentionArgs& a, int64_t tile_rows) {
  std::vector<Work> all;
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  int64_t states = 0;
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t queries = a.query_start_loc[s + 1] - a.query_start_loc[s];
    const int64_t rows = queries * group;
    for (int64_t head = 0; head < a.shape.num_kv_heads; ++head) {
      for (int64_t row = 0; row < rows; row += tile_rows) {
        const int64_t end = std::min(rows, row + tile_rows);
        const int64_t position = a.seq_lens[s] - queries;
        const int64_t first = first_key(a, position + row / group) / kAttentionSplit;
        const int64_t last = end_of_keys(a, position + (end - 1) / group, a.seq_lens[s]) - 1;
        const int64_t splits = last / kAttentionSplit + 1 - first;
        all.push_back({{s, head, row, end}, first, splits, states});
        states += splits;
      }
    }
  }
  return all;
}

}  // namespace

KvCacheLayout kv_cache_layout(const KernelTable& table, Storage storage, KvCacheType cache,
                              const KvCacheShape& shape) {
  if (shape.num_kv_heads < 1) throw std::invalid_argument("num_kv_heads must be at least 1");
  if (shape.head_dim < 8 || shape.head_dim % 8 != 0 || shape.head_dim > 1024) {
    throw std::invalid_argument("head_dim must be a multiple of 8, at most 1024, not " +
                                std::to_string(shape.head_dim));
  }
  if (shape.block_size != 16 && shape.block_size != 32 && shape.block_size != 64 && shape.block_size != 128) {
    throw std::invalid_argument("block_size must be 16, 32, 64 or 128, not " +
                                std::to_string(shape.block_size));
  }
  KvCacheLayout layout{};
  ARMLLM_OF_CACHE(table, kv_cache_layout, storage, cache)(shape, layout);
  return layout;
}

void paged_attention(const KernelTable& table, Storage storage, KvCacheType cache,
                     const PagedAttentionArgs& args, int64_t num_blocks, int64_t num_tokens) {
  check(args, num_blocks, num_tokens);
  const AttentionKernel& kernel = *ARMLLM_OF_CACHE(table, paged_attention, storage, cache);
  const std::vector<Work> work = plan(args, kernel.tile_rows);
  if (work.empty()) return;

  int64_t states = 0;
  for (const Work& w : work) states += w.splits;
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), states));
  const int64_t scratch_bytes = round_up(kernel.scratch_bytes(args.shape), 64);
  const int64_t state_floats = round_up(kernel.tile_rows * (args.shape.head_dim + 2), 16);
  const int64_t state_bytes = state_floats * static_cast<int64_t>(sizeof(float));
  // Few tiles, long contexts: the splits of a tile go to different threads. Either way they are merged in
  // order.
  const bool apart =
      static_cast<int64_t>(work.size()) < 4 * threads && states > static_cast<int64_t>(work.size());

  thread_local Workspace workspace;
  const int64_t kept_states = apart ? states : 2 * threads;
  char* memory = workspace.reserve(threads * scratch_bytes + kept_states * state_bytes);
  char* state_memory = memory + threads * scratch_bytes;
  const auto state = [&](int64_t index) {
    float* p = reinterpret_cast<float*>(state_memory + index * state_bytes);
    return AttentionState{p, p + kernel.tile_rows, p + 2 * kernel.tile_rows};
  };

  if (!apart) {
    parallel_for(static_cast<int64_t>(work.size()), threads, [&](int64_t i, int thread) {
      const Work& w = work[static_cast<size_t>(i)];
      void* scratch = memory + thread * scratch_bytes;
      const AttentionState sum = state(2 * thread), next = state(2 * thread + 1);
      kernel.split(args, w.tile, w.first_split, sum, scratch);
      for (int64_t split = 1; split < w.splits; ++split) {
        kernel.split(args, w.tile, w.first_split + split, next, scratch);
        kernel.merge(args, w.tile, sum, next);
      }
      kernel.finish(args, w.tile, sum);
    });
    return;
  }

  std::vector<const Work*> owner(static_cast<size_t>(states));
  for (const Work& w : work) {
    for (int64_t split = 0; split < w.splits; ++split) owner[static_cast<size_t>(w.first_state + split)] = &w;
  }
  const auto compute = [&](int64_t i, int thread) {
    const Work& w = *owner[static_cast<size_t>(i)];
    kernel.split(args, w.tile, w.first_split + i - w.first_state, state(i), memory + thread * scratch_bytes);
  };
  const auto join = [&](int64_t i, int) {
    const Work& w = work[static_cast<size_t>(i)];
    for (int64_t split = 1; split < w.splits; ++split) {
      kernel.merge(args, w.tile, state(w.first_state), state(w.first_state + split));
    }
    kernel.finish(args, w.tile, state(w.first_state));
  };
  const Stage stages[] = {{states, compute}, {static_cast<int64_t>(work.size()), join}};
  parallel_stages(stages, 2, threads);
}

}  // namespace armllm
