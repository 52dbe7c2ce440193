// The drivers: they check every index that a kernel will follow, split the work over threads, and own the
// scratch memory. Shapes and strides have been checked by the caller (csrc/python does).
//
// Which kernels: those of `table`, for a process's own calls dispatched().table.
//
// std::invalid_argument names the argument at fault; nothing has been written then.

#pragma once

#include <functional>
#include <string>

#include "armllm/kernels.h"

namespace armllm {

enum class Function : int {
#define ARMLLM_NAME(name, ...) name,
  ARMLLM_FUNCTIONS(ARMLLM_NAME)
#undef ARMLLM_NAME
};
constexpr bool is_gated(Function function) {
#define ARMLLM_IS(name, ...) || function == Function::name
  return false ARMLLM_GATED_FUNCTIONS(ARMLLM_IS);
#undef ARMLLM_IS
}

// The type of stored keys and values: their storage type, or int8.
enum class KvCacheType : int { plain, int8 };

// The entry of `op` for a storage type.
#define ARMLLM_OF_STORAGE(table, op, storage)               \
  ((storage) == ::armllm::Storage::f32   ? (table).op##_f32 \
   : (storage) == ::armllm::Storage::f16 ? (table).op##_f16 \
                                         : (table).op##_bf16)
#define ARMLLM_OF_CACHE(table, op, storage, cache)                                       \
  ((cache) == ::armllm::KvCacheType::int8 ? ARMLLM_OF_STORAGE(table, op##_int8, storage) \
                                          : ARMLLM_OF_STORAGE(table, op, storage))

// An op that is run in pieces: rows of a norm, chunks of an activation.
struct PiecewiseOp {
  std::function<void(int64_t begin, int64_t end)> run;
  int64_t count;          // of rows or chunks
  int64_t elements_each;  // what one costs, in elements that are only copied
};
PiecewiseOp rms_norm_pieces(const KernelTable& table, Storage storage, const RmsNormArgs& args);
PiecewiseOp fused_add_rms_norm_pieces(const KernelTable& table, Storage storage,
                                      const FusedAddRmsNormArgs& args);
PiecewiseOp layer_norm_pieces(const KernelTable& table, Storage storage, const LayerNormArgs& args);
PiecewiseOp activation_pieces(const KernelTable& table, Function function, Storage storage,
                              const ActivationArgs& args);

void rms_norm(const KernelTable& table, Storage storage, const RmsNormArgs& args);
void fused_add_rms_norm(const KernelTable& table, Storage storage, const FusedAddRmsNormArgs& args);
// Positions must be in [0, max_position).
void rotary_embedding(const KernelTable& table, Storage storage, const RotaryArgs& args,
                      int64_t max_position);
void layer_norm(const KernelTable& table, Storage storage, const LayerNormArgs& args);
void activation(const KernelTable& table, Function function, Storage storage, const ActivationArgs& args);
// The kernel that converts, null where both are one storage type.
Activation* converter(const KernelTable& table, Storage to, Storage from);
// Of one storage type, it copies.
void convert(const KernelTable& table, Storage to, Storage from, const ActivationArgs& args);

// out[t] = table[rows[t]]
struct GatherRowsArgs {
  void* out;            // [tokens, width], of the storage type
  const void* table;    // [num_rows, width], of the storage type
  const int64_t* rows;  // [tokens], in [0, num_rows)
  int64_t tokens, width;
  int64_t out_stride, table_stride;
  int64_t num_rows;
};
void gather_rows(Storage storage, const GatherRowsArgs& args);

KvCacheLayout kv_cache_layout(const KernelTable& table, Storage storage, KvCacheType cache,
                              const KvCacheShape& shape);
// Slots must be below num_blocks * block_size; each slot stands at most once in slot_mapping.
void write_kv_cache(const KernelTable& table, Storage storage, KvCacheType cache,
                    const WriteKvCacheArgs& args, int64_t num_blocks);
// query has num_tokens rows; query_start_loc must rise from 0 to num_tokens, and every block that seq_lens
// needs must be in [0, num_blocks). Block table entries behind the last block needed are not read.
void paged_attention(const KernelTable& table, Storage storage, KvCacheType cache,
                     const PagedAttentionArgs& args, int64_t num_blocks, int64_t num_tokens);

// Attention within whole sequences, whose keys and values nobody needs afterwards; fields as in
// PagedAttentionArgs.
struct VarlenAttentionArgs {
  void* out;          // [tokens, num_query_heads, head_dim]
  const void* query;  // the same
  const void* key;    // [tokens, num_kv_heads, head_dim]
  const void* value;  // the same
  const int32_t* query_start_loc;
  int64_t num_seqs, num_query_heads, num_kv_heads, head_dim;
  int64_t out_token_stride, out_head_stride, query_token_stride, query_head_stride;
  int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
  float scale;
  int64_t sliding_window;
  bool bidirectional;
  float logit_soft_cap;
};
void varlen_attention(const KernelTable& table, Storage storage, const VarlenAttentionArgs& args,
                      int64_t num_tokens);

void quantize_rows(const KernelTable& table, Storage storage, const QuantizeRowsArgs& args);

// The kernel for weights of 4 or 8 bits; what it says of layouts is the same for every storage type.
const MatmulKernel& matmul_kernel(const KernelTable& table, int bits, Storage storage);
// Throws unless it is a weight that the kernels take.
void check_weight(int bits, const WeightShape& shape);
// Writes a zero to every page of new memory for a weight. Linux gives a page the node of the thread that
// writes first, and a thread here has the share of the memory that its group of threads reads in a product.
void touch_pages(void* memory, int64_t bytes);
// A packed weight of this machine's kernels, or in any layout (layout_of_target throws for an unknown name).
const WeightLayout& layout_of_target(const std::string& target);
int64_t packed_bytes(const WeightLayout& layout, int bits, const WeightShape& shape);
int64_t packed_bytes(const KernelTable& table, int bits, const WeightShape& shape);
// False if an integer may be none of shape.values: zeros that fill up a panel count, too.
bool pack_weight(const WeightLayout& layout, int bits, const PackWeightArgs& args);
bool pack_weight(const KernelTable& table, int bits, const PackWeightArgs& args);
// Rows of a weight into their places in panels, as panel_matmul of `to` reads them. in_features are filled up
// with zeros to a multiple of 4; what belongs to other rows stays as it is.
struct PackPanelsArgs {
  void* panels;      // of the whole weight
  const void* rows;  // [count, in_features]
  int64_t first;     // the number of the first row in the weight
  int64_t count, in_features, stride;
};
void pack_panels(const KernelTable& table, Storage to, Storage from, const PackPanelsArgs& args);
// The same for a weight of E4M3 in panels of bytes, which products of `storage` read.
void pack_fp8(const KernelTable& table, Storage storage, const PackPanelsArgs& args);
// A weight of the storage type, contiguous as it is or in panels; a packed one of 4 or 8 bits; or E4M3 with
// scales, in panels of bytes in the order of those of the storage type.
enum class WeightForm : int { dense, panels, int4, int8, fp8 };
constexpr int bits_of(WeightForm form) {  // of a packed weight, else 0
  return form == WeightForm::int4 ? 4 : form == WeightForm::int8 ? 8 : 0;
}
const MatmulKernel& matmul_kernel(const KernelTable& table, WeightForm form, Storage storage);
// Ops in the region of a product, to the bits of calls of their own: a norm that makes the rows of x, and an
// activation of what the product has written. Null: none.
struct Beside {
  const PiecewiseOp* norm = nullptr;
  const PiecewiseOp* activation = nullptr;
};
// args.activations is ignored: the scratch memory is the driver's.
void matmul(const KernelTable& table, WeightForm form, Storage storage, const MatmulArgs& args,
            const Beside& beside = {});
// Products of heads, each with panels of its own: out[t, h, n] = sum_k x[t, h, k] * w[h, n, k]. `first` is
// that of the first head, without a bias; its out_features are a multiple of kPanelColumns. Those of the
// others lie so many elements further.
struct Heads {
  int64_t count, out_stride, x_stride;
};
void head_matmul(const KernelTable& table, Storage storage, const MatmulArgs& first, const Heads& heads);

// A mixture of experts in one call: out[t] = sum_j expert_weights[t, j] * mlp(x[t]) of expert
// expert_ids[t, j], where mlp(x) = down(function(gate(x)) * up(x)). Between the products all is float; both
// round their inputs as matmul does, with weights as they are to the storage type at most. out must not
// overlap x. Shazeer et al. 2017, arXiv:1701.06538.
//
// Where several ranks compute the experts, each has some rows of both matrices of every expert: the same
// gates and ups, `part` of `intermediate`, and some of down's. Then `gather` is called once per batch of
// experts.
struct MoeArgs {
  void* out;                    // [tokens, rows of down], of the storage type
  const void* x;                // [tokens, hidden], of the storage type
  const int64_t* expert_ids;    // [tokens, per_token], contiguous; below num_experts, -1: none
  const float* expert_weights;  // [tokens, per_token], contiguous
  const void* const* gate_up;   // per expert [2 * part, hidden], gate first
  const void* const* down;      // per expert [rows of down, intermediate]
  WeightShape gate_up_shape, down_shape;
  int64_t tokens, per_token, num_experts;
  int64_t out_stride, x_stride;
  const float* gate_up_bias = nullptr;  // [num_experts, 2 * part], or null
  const float* down_bias = nullptr;     // [num_experts, rows of down], or null
  // Not 0: in place of the function h * sigmoid(alpha * h) * (u + 1), where h is the gate up to `limit` and
  // u is up from -limit to `limit`.
  float alpha = 0, limit = 0;
  // whole [rows, intermediate] from this rank's part [rows, part], all contiguous; empty: part is the whole.
  std::function<void(float* whole, const float* part, int64_t rows)> gather = {};
};
// The function is a gated one.
void moe(const KernelTable& table, WeightForm form, Storage storage, Function function, const MoeArgs& args);

// slots[t]: the adapter of row t, -1 for none; below args.slots. ranks must be in [0, max_rank], and
// part_ends rise to out_features. y must not overlap x.
void add_lora(const KernelTable& table, Storage storage, const LoraArgs& args, const int64_t* slots,
              int64_t rows);

// Slots must be below num_slots and differ; starts must rise from 0 to tokens.
void causal_conv(const KernelTable& table, Storage storage, const CausalConvArgs& args, int64_t tokens,
                 int64_t num_slots);
void state_scan(const KernelTable& table, Storage storage, const StateScanArgs& args, int64_t tokens,
                int64_t num_slots);

// How a token is drawn from each row: of the likeliest, which min_p, then top_k, then top_p leave, and of
// what is as likely as the last of them, the first whose cumulative weight, in the order of ids, exceeds the
// share `uniforms` of the whole. The token of a row with a NaN, or without a finite greatest logit, means
// nothing.
struct SampleArgs {
  int64_t* token_ids;         // [rows]
  const float* logits;        // [rows, vocab_size]
  const float* temperatures;  // [rows], 1e-30 to 1e30
  const int64_t* top_k;       // [rows]; below 1, or not below vocab_size: all
  const double* top_p;        // [rows]; 1 or more: all
  const double* min_p;        // [rows], of the likeliest token's probability; 0: all
  const double* uniforms;     // [rows], in [0, 1)
  int64_t rows, vocab_size;
  int64_t logits_stride;
};
void sample(const KernelTable& table, const SampleArgs& args);

}  // namespace armllm
