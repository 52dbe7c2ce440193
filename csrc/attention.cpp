// The attention driver: tiles of query rows, splits of the keys, and who computes which.

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"
#include "checks.h"
#include "product.h"
#include "ranges.h"
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

// The rows of a sequence from `row` on, as many as a tile has.
Work work_of(const PagedAttentionArgs& a, int64_t sequence, int64_t head, int64_t row, int64_t tile_rows) {
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  const int64_t queries = a.query_start_loc[sequence + 1] - a.query_start_loc[sequence];
  const int64_t length = a.seq_lens[sequence], position = length - queries;
  const int64_t end = std::min(queries * group, row + tile_rows);
  const int64_t first = first_key(a, position + row / group) / kAttentionSplit;
  const int64_t last = end_of_keys(a, position + (end - 1) / group, length) - 1;
  return {{sequence, head, row, end}, first, last / kAttentionSplit + 1 - first, 0};
}

std::vector<Work> plan(const PagedAttentionArgs& a, int64_t tile_rows) {
  std::vector<Work> all;
  const int64_t group = a.num_query_heads / a.shape.num_kv_heads;
  int64_t states = 0;
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t rows = (a.query_start_loc[s + 1] - a.query_start_loc[s]) * group;
    for (int64_t head = 0; head < a.shape.num_kv_heads; ++head) {
      for (int64_t row = 0; row < rows; row += tile_rows) {
        all.push_back(work_of(a, s, head, row, tile_rows));
        all.back().first_state = states;
        states += all.back().splits;
      }
    }
  }
  return all;
}

// Where the state of a tile's rows lies, and how large it is.
int64_t state_bytes_of(const AttentionKernel& kernel, int64_t head_dim) {
  return round_up(kernel.tile_rows * (head_dim + 2), 16) * static_cast<int64_t>(sizeof(float));
}
AttentionState state_at(const AttentionKernel& kernel, char* memory) {
  float* const p = reinterpret_cast<float*>(memory);
  return {p, p + kernel.tile_rows, p + 2 * kernel.tile_rows};
}

// All splits of a tile, one after the other; states: memory for two.
void attend(const AttentionKernel& kernel, const PagedAttentionArgs& a, const Work& w, char* states,
            void* scratch) {
  const AttentionState sum = state_at(kernel, states);
  const AttentionState next = state_at(kernel, states + state_bytes_of(kernel, a.shape.head_dim));
  kernel.split(a, w.tile, w.first_split, sum, scratch);
  for (int64_t split = 1; split < w.splits; ++split) {
    kernel.split(a, w.tile, w.first_split + split, next, scratch);
    kernel.merge(a, w.tile, sum, next);
  }
  kernel.finish(a, w.tile, sum);
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
  const int64_t state_bytes = state_bytes_of(kernel, args.shape.head_dim);
  // Few tiles, long contexts: the splits of a tile go to different threads. Either way they are merged in
  // order.
  const bool apart =
      static_cast<int64_t>(work.size()) < 4 * threads && states > static_cast<int64_t>(work.size());

  thread_local Workspace workspace;
  const int64_t kept_states = apart ? states : 2 * threads;
  char* memory = workspace.reserve(threads * scratch_bytes + kept_states * state_bytes);
  char* state_memory = memory + threads * scratch_bytes;
  const auto state = [&](int64_t index) { return state_at(kernel, state_memory + index * state_bytes); };

  if (!apart) {
    parallel_for(static_cast<int64_t>(work.size()), threads, [&](int64_t i, int thread) {
      attend(kernel, args, work[static_cast<size_t>(i)], state_memory + 2 * thread * state_bytes,
             memory + thread * scratch_bytes);
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

namespace {

constexpr int64_t kVarlenBlock = 16;  // the smallest: short sequences leave little of a block empty

// By way of a cache of all sequences.
void attend_by_cache(const KernelTable& table, Storage storage, const VarlenAttentionArgs& a,
                     int64_t num_tokens, int64_t blocks_each) {
  const KvCacheShape shape{a.num_kv_heads, a.head_dim, kVarlenBlock};
  const KvCacheLayout layout = kv_cache_layout(table, storage, KvCacheType::plain, shape);
  std::vector<int32_t> tables(static_cast<size_t>(a.num_seqs * blocks_each)), lengths;
  std::vector<int64_t> slots;
  int64_t blocks = 0;
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t length = a.query_start_loc[s + 1] - a.query_start_loc[s], own = blocks;
    lengths.push_back(static_cast<int32_t>(length));
    for (int64_t t = 0; t < length; ++t) slots.push_back(own * kVarlenBlock + t);
    for (; (blocks - own) * kVarlenBlock < length; ++blocks) {
      tables[static_cast<size_t>(s * blocks_each + blocks - own)] = static_cast<int32_t>(blocks);
    }
  }
  thread_local Workspace workspace;
  char* const cache = workspace.reserve(blocks * layout.block_bytes);
  write_kv_cache(table, storage, KvCacheType::plain,
                 {a.key, a.value, cache, slots.data(), shape, layout, num_tokens, a.key_token_stride,
                  a.key_head_stride, a.value_token_stride, a.value_head_stride},
                 blocks);
  paged_attention(table, storage, KvCacheType::plain,
                  {a.out,
                   a.query,
                   cache,
                   tables.data(),
                   a.query_start_loc,
                   lengths.data(),
                   shape,
                   layout,
                   a.num_seqs,
                   a.num_query_heads,
                   blocks_each,
                   blocks_each,
                   a.out_token_stride,
                   a.out_head_stride,
                   a.query_token_stride,
                   a.query_head_stride,
                   a.scale,
                   a.sliding_window,
                   0,
                   a.bidirectional,
                   a.logit_soft_cap,
                   nullptr,
                   nullptr},
                  blocks, num_tokens);
}

// 0, 1, 2, ...: blocks and slots of a cache that one sequence has for itself.
struct OwnCache {
  std::vector<int32_t> blocks;
  std::vector<int64_t> slots;

  void reach(int64_t count) {
    if (static_cast<int64_t>(blocks.size()) >= count) return;
    blocks.resize(static_cast<size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 0);
    slots.resize(static_cast<size_t>(count * kVarlenBlock));
    std::iota(slots.begin(), slots.end(), 0);
  }
};

// A thread puts the keys and values of one head of a sequence into a cache of its own, where they stay in the
// first caches of its core, and attends to them.
class HeadAttention {
 public:
  HeadAttention(const KernelTable& table, Storage storage, const VarlenAttentionArgs& a, int64_t longest,
                const OwnCache& numbers)
      : a_(a),
        kernel_(*ARMLLM_OF_CACHE(table, paged_attention, storage, KvCacheType::plain)),
        write_(ARMLLM_OF_CACHE(table, write_kv_cache, storage, KvCacheType::plain)),
        numbers_(numbers),
        size_(bytes_of(storage)),
        group_(a.num_query_heads / a.num_kv_heads),
        blocks_(ceil_div(longest, kVarlenBlock)),
        shape_{1, a.head_dim, kVarlenBlock},
        layout_(kv_cache_layout(table, storage, KvCacheType::plain, shape_)),
        scratch_bytes_(round_up(kernel_.scratch_bytes(shape_), 64)) {}

  // The memory of a thread: a cache, scratch memory and two states.
  int64_t bytes() const {
    return blocks_ * layout_.block_bytes + scratch_bytes_ + 2 * state_bytes_of(kernel_, a_.head_dim);
  }

  void run(int64_t sequence, int64_t head, char* memory) const {
    const int32_t begin = a_.query_start_loc[sequence], length = a_.query_start_loc[sequence + 1] - begin;
    if (length == 0) return;
    write_({part(a_.key, begin, a_.key_token_stride, head, a_.key_head_stride),
            part(a_.value, begin, a_.value_token_stride, head, a_.value_head_stride), memory,
            numbers_.slots.data(), shape_, layout_, length, a_.key_token_stride, a_.key_head_stride,
            a_.value_token_stride, a_.value_head_stride},
           0, length);
    const int32_t starts[2] = {0, length};
    const PagedAttentionArgs args = args_of(begin, starts, head, memory);
    char* const scratch = memory + blocks_ * layout_.block_bytes;
    for (int64_t row = 0; row < length * group_; row += kernel_.tile_rows) {
      attend(kernel_, args, work_of(args, 0, 0, row, kernel_.tile_rows), scratch + scratch_bytes_, scratch);
    }
  }

 private:
  const char* part(const void* x, int64_t token, int64_t token_stride, int64_t head,
                   int64_t head_stride) const {
    return static_cast<const char*>(x) + (token * token_stride + head * head_stride) * size_;
  }

  // One sequence of one KV head; starts: 0 and its length.
  PagedAttentionArgs args_of(int64_t begin, const int32_t* starts, int64_t head, const char* cache) const {
    PagedAttentionArgs args{};
    args.out = const_cast<char*>(part(a_.out, begin, a_.out_token_stride, head * group_, a_.out_head_stride));
    args.query = part(a_.query, begin, a_.query_token_stride, head * group_, a_.query_head_stride);
    args.cache = cache;
    args.block_tables = numbers_.blocks.data();
    args.query_start_loc = starts;
    args.seq_lens = starts + 1;
    args.shape = shape_;
    args.layout = layout_;
    args.num_seqs = 1;
    args.num_query_heads = group_;
    args.max_blocks = args.block_table_stride = blocks_;
    args.out_token_stride = a_.out_token_stride;
    args.out_head_stride = a_.out_head_stride;
    args.query_token_stride = a_.query_token_stride;
    args.query_head_stride = a_.query_head_stride;
    args.scale = a_.scale;
    args.sliding_window = a_.sliding_window;
    args.bidirectional = a_.bidirectional;
    args.logit_soft_cap = a_.logit_soft_cap;
    return args;
  }

  const VarlenAttentionArgs& a_;
  const AttentionKernel& kernel_;
  WriteKvCache* write_;
  const OwnCache& numbers_;
  int64_t size_, group_, blocks_;
  KvCacheShape shape_;
  KvCacheLayout layout_;
  int64_t scratch_bytes_;
};

void attend_by_heads(const KernelTable& table, Storage storage, const VarlenAttentionArgs& a, int64_t longest,
                     int threads) {
  thread_local OwnCache numbers;
  numbers.reach(ceil_div(longest, kVarlenBlock));
  const HeadAttention attention(table, storage, a, longest, numbers);
  const int64_t bytes = attention.bytes();
  thread_local Workspace workspace;
  char* const memory = workspace.reserve(threads * bytes);
  // What attention costs beside a copy, with few keys.
  constexpr int64_t kCost = 8;
  parallel_ranges(
      a.num_seqs * a.num_kv_heads, longest * a.head_dim * kCost, kSimpleElements,
      [&](int64_t first, int64_t last, int thread) {
        for (int64_t i = first; i < last; ++i)
          attention.run(i / a.num_kv_heads, i % a.num_kv_heads, memory + thread * bytes);
      },
      threads);
}

}  // namespace

void varlen_attention(const KernelTable& table, Storage storage, const VarlenAttentionArgs& a,
                      int64_t num_tokens) {
  check_query_start_loc(a.query_start_loc, a.num_seqs, num_tokens, "query");
  int64_t longest = 0;
  double all = 0;  // pairs of tokens, of a head
  for (int64_t s = 0; s < a.num_seqs; ++s) {
    const int64_t length = a.query_start_loc[s + 1] - a.query_start_loc[s];
    longest = std::max(longest, length);
    all += static_cast<double>(length) * static_cast<double>(length);
  }
  if (longest == 0) return;
  const int threads = num_threads();
  const double most = static_cast<double>(longest) * static_cast<double>(longest);
  // Else a thread would compute the last head alone.
  const bool enough = threads == 1 || all * static_cast<double>(a.num_kv_heads) >=
                                          most * static_cast<double>(wanted_items(threads));
  if (enough) return attend_by_heads(table, storage, a, longest, threads);
  attend_by_cache(table, storage, a, num_tokens, ceil_div(longest, kVarlenBlock));
}

}  // namespace armllm
