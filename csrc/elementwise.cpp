// Drivers of the ops whose rows (or heads, or chunks) are independent of each other.

#include <string.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "armllm/dispatch.h"
#include "armllm/ops.h"
#include "ranges.h"

namespace armllm {

namespace {

template <class Args>
void run(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
         int64_t elements_each) {
  parallel_ranges(count, elements_each, kSimpleElements,
                  [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
}

template <class Args>
PiecewiseOp pieces(void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t count,
                   int64_t elements_each) {
  return {[=](int64_t begin, int64_t end) { kernel(args, begin, end); }, count, elements_each};
}

// Two tokens for one slot would make the cache depend on who writes last.
void check_distinct(const int64_t* slots, int64_t tokens) {
  int64_t last = -1;
  bool rising = true;  // as in a prompt whose blocks follow each other; a decode step has few tokens
  for (int64_t t = 0; t < tokens && rising; ++t) {
    if (slots[t] < 0) continue;
    rising = slots[t] > last;
    last = slots[t];
  }
  if (rising) return;
  std::vector<int64_t> sorted(slots, slots + tokens);
  std::sort(sorted.begin(), sorted.end());
  const auto first = std::lower_bound(sorted.begin(), sorted.end(), int64_t{0});
  const auto twice = std::adjacent_find(first, sorted.end());
  if (twice == sorted.end()) return;
  const int64_t* one = std::find(slots, slots + tokens, *twice);
  const int64_t* other = std::find(one + 1, slots + tokens, *twice);
  throw std::invalid_argument("slot_mapping[" + std::to_string(other - slots) + "] is " +
                              std::to_string(*twice) + ", as slot_mapping[" + std::to_string(one - slots) +
                              "] is: each slot takes one token");
}

}  // namespace

PiecewiseOp rms_norm_pieces(const KernelTable& table, Storage storage, const RmsNormArgs& args) {
  return pieces(ARMLLM_OF_STORAGE(table, rms_norm, storage), args, args.rows, args.hidden);
}

PiecewiseOp fused_add_rms_norm_pieces(const KernelTable& table, Storage storage,
                                      const FusedAddRmsNormArgs& args) {
  return pieces(ARMLLM_OF_STORAGE(table, fused_add_rms_norm, storage), args, args.rows, args.hidden);
}

PiecewiseOp layer_norm_pieces(const KernelTable& table, Storage storage, const LayerNormArgs& args) {
  return pieces(ARMLLM_OF_STORAGE(table, layer_norm, storage), args, args.rows, args.hidden);
}

void rms_norm(const KernelTable& table, Storage storage, const RmsNormArgs& args) {
  run(ARMLLM_OF_STORAGE(table, rms_norm, storage), args, args.rows, args.hidden);
}

void fused_add_rms_norm(const KernelTable& table, Storage storage, const FusedAddRmsNormArgs& args) {
  run(ARMLLM_OF_STORAGE(table, fused_add_rms_norm, storage), args, args.rows, args.hidden);
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
  run(ARMLLM_OF_STORAGE(table, rotary_embedding, storage), args,
      args.tokens * (args.num_query_heads + args.num_key_heads), args.rotary_dim);
}

void layer_norm(const KernelTable& table, Storage storage, const LayerNormArgs& args) {
  run(ARMLLM_OF_STORAGE(table, layer_norm, storage), args, args.rows, args.hidden);
}

namespace {

int64_t chunks_of(const ActivationArgs& args) { return args.rows * ceil_div(args.width, kActivationChunk); }

// `cost` of an element, in elements that are only copied.
int64_t chunk_cost(const ActivationArgs& args, int64_t cost) {
  return std::min(args.width, kActivationChunk) * cost;
}

Activation* kernel_of(const KernelTable& table, Function function, Storage storage) {
  switch (function) {
#define ARMLLM_CASE(op, ...) \
  case Function::op:         \
    return ARMLLM_OF_STORAGE(table, op, storage);
    ARMLLM_FUNCTIONS(ARMLLM_CASE)
#undef ARMLLM_CASE
  }
  return nullptr;
}

int64_t cost_of(Function function) { return function == Function::relu ? 1 : 4; }

}  // namespace

PiecewiseOp activation_pieces(const KernelTable& table, Function function, Storage storage,
                              const ActivationArgs& args) {
  return pieces(kernel_of(table, function, storage), args, chunks_of(args),
                chunk_cost(args, cost_of(function)));
}

void activation(const KernelTable& table, Function function, Storage storage, const ActivationArgs& args) {
  run(kernel_of(table, function, storage), args, chunks_of(args), chunk_cost(args, cost_of(function)));
}

Activation* converter(const KernelTable& table, Storage to, Storage from) {
  if (to == from) return nullptr;
  switch (from) {
    case Storage::f32:
      return to == Storage::f16 ? table.convert_f32_to_f16 : table.convert_f32_to_bf16;
    case Storage::f16:
      return to == Storage::f32 ? table.convert_f16_to_f32 : table.convert_f16_to_bf16;
    case Storage::bf16:
      return to == Storage::f32 ? table.convert_bf16_to_f32 : table.convert_bf16_to_f16;
  }
  return nullptr;
}

void convert(const KernelTable& table, Storage to, Storage from, const ActivationArgs& args) {
  if (to == from) {
    const int64_t size = bytes_of(from);
    parallel_ranges(args.rows, args.width, kSimpleElements, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        memmove(static_cast<char*>(args.out) + row * args.out_stride * size,
                static_cast<const char*>(args.x) + row * args.x_stride * size,
                static_cast<size_t>(args.width * size));
      }
    });
    return;
  }
  run(converter(table, to, from), args, chunks_of(args), chunk_cost(args, 1));
}

void gather_rows(Storage storage, const GatherRowsArgs& args) {
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.rows[t] < 0 || args.rows[t] >= args.num_rows) {
      throw std::invalid_argument("rows[" + std::to_string(t) + "] is " + std::to_string(args.rows[t]) +
                                  ", but table has " + std::to_string(args.num_rows) + " rows");
    }
  }
  const int64_t size = bytes_of(storage);
  parallel_ranges(args.tokens, args.width, kSimpleElements, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      memcpy(static_cast<char*>(args.out) + t * args.out_stride * size,
             static_cast<const char*>(args.table) + args.rows[t] * args.table_stride * size,
             static_cast<size_t>(args.width * size));
    }
  });
}

void write_kv_cache(const KernelTable& table, Storage storage, KvCacheType cache,
                    const WriteKvCacheArgs& args, int64_t num_blocks) {
  const int64_t slots = num_blocks * args.shape.block_size;
  for (int64_t t = 0; t < args.tokens; ++t) {
    if (args.slot_mapping[t] >= slots) {
      throw std::invalid_argument("slot_mapping[" + std::to_string(t) + "] is " +
                                  std::to_string(args.slot_mapping[t]) + ", but the cache has " +
                                  std::to_string(slots) + " slots");
    }
  }
  check_distinct(args.slot_mapping, args.tokens);
  run(ARMLLM_OF_CACHE(table, write_kv_cache, storage, cache), args, args.tokens * args.shape.num_kv_heads,
      2 * args.shape.head_dim);
}

}  // namespace armllm
