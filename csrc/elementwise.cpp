// Drivers of the ops whose rows (or heads, or chunks) are independent of each other.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "armllm/threads.h"

namespace armllm {

namespace {

// Splits [0, count) into ranges worth a thread's while: waking one costs about as much as some 16,000
// elements.
template <class Args>
void run(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
         int64_t elements_each) {
  constexpr int64_t kElements = 16384;
  const int64_t each = std::max<int64_t>(1, kElements / std::max<int64_t>(1, elements_each));
  const int64_t ranges = (count + each - 1) / each;
  parallel_for(ranges, 0,
               [&](int64_t range, int) { kernel(args, range * each, std::min(count, (range + 1) * each)); });
}

}  // namespace

void rms_norm(const KernelTable& table, Storage storage, const RmsNormArgs& args) {
  run(storage == Storage::f32 ? table.rms_norm_f32 : table.rms_norm_bf16, args, args.rows, args.hidden);
}

void fused_add_rms_norm(const KernelTable& table, Storage storage, const FusedAddRmsNormArgs& args) {
  run(storage == Storage::f32 ? table.fused_add_rms_norm_f32 : table.fused_add_rms_norm_bf16, args, args.rows,
      args.hidden);
}

void rotary_embedding(const KernelTable& table, Storage storage, const RotaryArgs& args,
                      int64_t max_position) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.positions[t] < 0 || args.positions[t] >= max_position) {
      throw std::invalid_argument("positions[" + std::to_string(t) + "] is " +
                                  std::to_string(args.positions[t]) + ", outside cos_sin_cache's [0, " +
                                  std::to_string(max_position) + ")");
    }
  }
  run(storage == Storage::f32 ? table.rotary_embedding_f32 : table.rotary_embedding_bf16, args,
      args.tokens * (args.num_query_heads + args.num_key_heads), args.rotary_dim);
}

void silu_and_mul(const KernelTable& table, Storage storage, const ActivationArgs& args) {
  const int64_t chunks = (args.width + kActivationChunk - 1) / kActivationChunk;
  run(storage == Storage::f32 ? table.silu_and_mul_f32 : table.silu_and_mul_bf16, args, args.rows * chunks,
      std::min(args.width, kActivationChunk) * 4);
}

void write_kv_cache(const KernelTable& table, Storage storage, const WriteKvCacheArgs& args,
                    int64_t num_blocks) {
  const int64_t slots = num_blocks * args.shape.block_size;
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.slot_mapping[t] >= slots) {
      throw std::invalid_argument("slot_mapping[" + std::to_string(t) + "] is " +
                                  std::to_string(args.slot_mapping[t]) + ", but the cache has " +
                                  std::to_string(slots) + " slots");
    }
  }
  run(storage == Storage::f32 ? table.write_kv_cache_f32 : table.write_kv_cache_bf16, args,
      args.tokens * args.shape.num_kv_heads, 2 * args.shape.head_dim);
}

}  // namespace armllm
