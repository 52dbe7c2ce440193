// The contract between the drivers (csrc/*.cpp) and the kernels (csrc/targets/*.cpp).
//
// A kernel is stateless: it gets one argument structure and a range of the work, allocates nothing, starts no
// threads, throws nothing. The driver has checked every shape and index, owns all memory, and splits the
// range.
//
// Void pointers are to elements of the op's storage type. Strides and sizes count elements unless a name says
// `_bytes`. The last dimension is contiguous. No pointer needs more alignment than its element type, except
// the KV cache and scratch memory (64 bytes). Buffers don't overlap unless a comment says that they may.

#pragma once

#include <stddef.h>
#include <stdint.h>

#include "armllm/matmul_kernel.h"

namespace armllm {

// Storage types. Arithmetic is in float, except inside dot-product instructions.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {  // IEEE 754 binary16
  uint16_t bits;
};

// out[row, i] = x[row, i] / sqrt(mean(x[row]^2) + eps) * (weight[i] + weight_offset)
// Range: rows. `out` may be `x` itself (same pointer, same stride). Zhang & Sennrich 2019, arXiv:1910.07467.
struct RmsNormArgs {
  void* out;           // [rows, hidden]
  const void* x;       // [rows, hidden]
  const void* weight;  // [hidden]
  int64_t rows, hidden;
  int64_t out_stride, x_stride;
  float eps;
  float weight_offset;  // 1 for Gemma's (1 + w), else 0
};
using RmsNorm = void(const RmsNormArgs&, int64_t begin, int64_t end);

// residual[row] = round(x[row] + residual[row]); x[row] = rms_norm(residual[row]). Both in place. Range:
// rows.
struct FusedAddRmsNormArgs {
  void* x;             // [rows, hidden]
  void* residual;      // [rows, hidden]
  const void* weight;  // [hidden]
  int64_t rows, hidden;
  int64_t x_stride, residual_stride;
  float eps;
  float weight_offset;
};
using FusedAddRmsNorm = void(const FusedAddRmsNormArgs&, int64_t begin, int64_t end);

// out[row, i] = (x[row, i] - mean) / sqrt(variance + eps) * weight[i] + bias[i], mean and variance of the
// row. With a residual, residual[row] = round(x[row] + residual[row]) comes first, and out is its norm.
// Range: rows. `out` may be `x` itself. Ba, Kiros & Hinton 2016, arXiv:1607.06450.
struct LayerNormArgs {
  void* out;           // [rows, hidden]
  const void* x;       // [rows, hidden]
  const void* weight;  // [hidden]
  const void* bias;    // [hidden], or null for none
  void* residual;      // [rows, hidden], or null for none
  int64_t rows, hidden;
  int64_t out_stride, x_stride, residual_stride;
  float eps;
};
using LayerNorm = void(const LayerNormArgs&, int64_t begin, int64_t end);

// Rotates the first rotary_dim elements of every head by the angles of the token's position, in place.
// cos_sin_cache[position] = rotary_dim/2 cosines, then rotary_dim/2 sines. Pairs are (i, i + rotary_dim/2),
// or (2i, 2i + 1) when interleaved. Range: tokens * (num_query_heads + num_key_heads), heads of a token
// adjacent. Su et al. 2021, arXiv:2104.09864.
struct RotaryArgs {
  const int64_t* positions;    // [tokens]
  void* query;                 // [tokens, num_query_heads, head_dim]
  void* key;                   // [tokens, num_key_heads, head_dim]
  const float* cos_sin_cache;  // [positions, rotary_dim]
  int64_t tokens, num_query_heads, num_key_heads, head_dim, rotary_dim;
  int64_t query_token_stride, query_head_stride, key_token_stride, key_head_stride, cache_stride;
  bool interleaved;
};
using RotaryEmbedding = void(const RotaryArgs&, int64_t begin, int64_t end);

// Element by element, in chunks. Range: rows * chunks, where a row has ceil(width / kActivationChunk) chunks.
//   gated      out[row, i] = f(x[row, i]) * x[row, width + i]; x has 2 * width columns
//   plain      out[row, i] = f(x[row, i])
//   convert    out[row, i] = x[row, i], to the nearest value, ties to even; NaN stays NaN
// f is silu, g / (1 + exp(-g)); gelu, g * Phi(g) with the normal distribution's Phi; gelu_tanh, its
// approximation g / (1 + exp(-2 sqrt(2/pi) (g + 0.044715 g^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415);
// quick_gelu, g / (1 + exp(-1.702 g)); relu. Plain ones may work in place.
// A chunk is whole turns of all targets' loops, which take one, four or six vectors.
inline constexpr int64_t kActivationChunk = 1152;
struct ActivationArgs {
  void* out;      // [rows, width]
  const void* x;  // [rows, width], of gated ones [rows, 2 * width]
  int64_t rows, width;
  int64_t out_stride, x_stride;
};
using Activation = void(const ActivationArgs&, int64_t begin, int64_t end);

// The KV cache is an array of blocks; what is inside a block belongs to the attention kernel that reads it,
// so kv_cache_layout, write_kv_cache and paged_attention of one storage type always come from the same
// target. A block holds the heads one after the other, a head its keys and then its values.
//
// The ops named _int8_ keep a cache of integers for keys, values and queries of a storage type: every head
// vector of a key or value is scale * q as by quantize_rows (symmetric), which write_kv_cache rounds to and
// paged_attention reads. All storage types share one layout.
struct KvCacheShape {
  int64_t num_kv_heads, head_dim, block_size;  // head_dim a multiple of 8; block_size of 16
};
struct KvCacheLayout {
  int64_t block_bytes;         // a multiple of 64
  int64_t head_stride_bytes;   // from one KV head to the next inside a block
  int64_t value_offset_bytes;  // from a head's keys to its values
  int64_t scale_offset_bytes;  // int8: from a head's keys to their scales, block_size floats, which those of
                               // the values follow; else 0
};
using KvCacheLayoutOf = void(const KvCacheShape&, KvCacheLayout&);

// Stores key[t], value[t] at slot_mapping[t] = block * block_size + offset; a negative slot is skipped.
// Range: tokens * num_kv_heads, heads of a token adjacent.
struct WriteKvCacheArgs {
  const void* key;              // [tokens, num_kv_heads, head_dim]
  const void* value;            // the same
  void* cache;                  // [blocks, block_bytes]
  const int64_t* slot_mapping;  // [tokens]
  KvCacheShape shape;
  KvCacheLayout layout;
  int64_t tokens;
  int64_t key_token_stride, key_head_stride, value_token_stride, value_head_stride;
};
using WriteKvCache = void(const WriteKvCacheArgs&, int64_t begin, int64_t end);

// Attention of the last tokens of each sequence over its cached keys and values. The logit of a query
// at position p and a key at position k is capped(query . key * scale) + slope * (k - p), where capped(x) is
// cap * tanh(x / cap).
struct PagedAttentionArgs {
  void* out;                       // [tokens, num_query_heads, head_dim]
  const void* query;               // the same
  const void* cache;               // [blocks, block_bytes]
  const int32_t* block_tables;     // [num_seqs, max_blocks]
  const int32_t* query_start_loc;  // [num_seqs + 1]
  const int32_t* seq_lens;         // [num_seqs], cached tokens, those of the query included
  KvCacheShape shape;
  KvCacheLayout layout;
  int64_t num_seqs, num_query_heads, max_blocks, block_table_stride;
  int64_t out_token_stride, out_head_stride, query_token_stride, query_head_stride;
  float scale;
  int64_t sliding_window;     // a query sees the keys p - window + 1 .. p; INT64_MAX: all up to p
  int64_t chunk_size;         // c: it sees the keys p / c * c .. p in place of a window; 0: none
  bool bidirectional;         // it sees those after p, too: all, or up to p + window - 1
  float logit_soft_cap;       // 0: none
  const float* alibi_slopes;  // [num_query_heads], or null for none. Press et al. 2022, arXiv:2108.12409
  const float*
      sinks;  // [num_query_heads], logits without a value, or null. Xiao et al. 2024, arXiv:2309.17453
};

// Query rows that share a KV head: row r of a sequence is query token r / group, query head
// kv_head * group + r % group, where group = num_query_heads / num_kv_heads.
struct AttentionTile {
  int64_t sequence, kv_head;
  int64_t row_begin, row_end;  // at most AttentionKernel::tile_rows rows
};

// Online softmax over some keys: per row an integer `base`, the first that is not below any logit / ln 2, the
// sum of exp(logit) / 2^base, and the sum of exp(logit) / 2^base * value. A row that saw no key has base =
// -infinity, sum = 0. Milakov & Gimelshein 2018 (arXiv:1805.02867), Rabe & Staats 2021 (arXiv:2112.05682).
struct AttentionState {
  float* base;    // [rows]
  float* sum;     // [rows]
  float* values;  // [rows, head_dim]
};

// Keys are taken in splits of this length, from the sequence's start. Splits are merged from left to right,
// whoever computed them: neither threads nor the rest of the batch change a bit of a sequence's result.
inline constexpr int64_t kAttentionSplit = 512;

struct AttentionKernel {
  int64_t tile_rows;
  // Bytes of scratch memory that `split` needs.
  int64_t (*scratch_bytes)(const KvCacheShape&);
  // Fills `state` from keys [split * kAttentionSplit, (split + 1) * kAttentionSplit) as far as they are
  // visible.
  void (*split)(const PagedAttentionArgs&, const AttentionTile&, int64_t split, const AttentionState& state,
                void* scratch);
  // into = into, then next.
  void (*merge)(const PagedAttentionArgs&, const AttentionTile&, const AttentionState& into,
                const AttentionState& next);
  // out = values / sum, the sum with the head's sink.
  void (*finish)(const PagedAttentionArgs&, const AttentionTile&, const AttentionState& state);
};
using PagedAttention = const AttentionKernel;

// q[row, i] = round(x[row, i] / scale) + zero, to nearest, ties to even; x is about scale * (q - zero).
//   symmetric   (zeros null) scale = max|x| / 127
//   asymmetric  scale = (high - low) / 255 and zero = round(-128 - low / scale), where low = min(x, 0) and
//               high = max(x, 0); q and zero are held in [-128, 127]
// A row whose largest magnitude is below 2^-100 counts as zeros: scale 0, q and zero 0. One that holds an
// infinity or a NaN has scale NaN, q and zero 0. Range: rows.
struct QuantizeRowsArgs {
  int8_t* q;       // [rows, width]
  float* scales;   // [rows]
  int32_t* zeros;  // [rows], or null
  const void* x;   // [rows, width]
  int64_t rows, width;
  int64_t q_stride, x_stride;
};
using QuantizeRows = void(const QuantizeRowsArgs&, int64_t begin, int64_t end);

// out[i] = x[i] * scales[i % kFp8Scales], rounded to nearest even: x are 8-bit numbers E4M3 (four bits of
// exponent with a bias of 7, three of mantissa; Micikevicius et al. 2022, arXiv:2209.05433) and no NaN,
// scales are below 2^7.
inline constexpr int64_t kFp8Scales = 64;
struct DecodeFp8Args {
  void* out;            // [count]
  const uint8_t* x;     // [count]
  const float* scales;  // [kFp8Scales]
  int64_t count;        // a multiple of kFp8Scales
};
using DecodeFp8 = void(const DecodeFp8Args&);

// out[t, i] = sum_j weights[t, j] * x[rows[t, j], i], in the order of j. A negative row is left out; a token
// without rows gets zeros. Range: tokens.
struct WeightedSumArgs {
  void* out;             // [tokens, width]
  const float* x;        // [rows, width]
  const float* weights;  // [tokens, terms]
  const int32_t* rows;   // [tokens, terms], contiguous
  int64_t tokens, terms, width;
  int64_t out_stride, x_stride, weights_stride;
};
using WeightedSum = void(const WeightedSumArgs&, int64_t begin, int64_t end);

// Low-rank adapters of one matrix, which lie in slots: y[t] += b[slot]^T a[slot] x[t] for rows t of that slot
// (Hu et al. 2021, arXiv:2106.09685). The matrix may have parts, whose columns of y end at part_ends; of part
// p of slot s only the first ranks[s, p] rows of a and b count, and with 0 its columns stay as they are. With
// norms a row is y + (y - bias) * norms[slot] first (Liu et al. 2024, arXiv:2402.09353).
//
// shrink: low = a x, in float, of bfloat16 rounded to that; begin and end of its tiles are rows of a. expand:
// the rest; they are columns of the part.
struct LoraArgs {
  void* y;                   // [rows, out_features]
  const void* x;             // [rows, in_features]
  const void* a;             // [slots, parts, max_rank, in_features]
  const void* b;             // [slots, max_rank * out_features]: of each part [max_rank, its columns]
  const int64_t* ranks;      // [slots, parts]
  const int64_t* part_ends;  // [parts]
  const float* norms;        // [slots, out_features], or null
  const float* bias;         // [out_features], or null for 0
  int64_t slots, parts, max_rank, in_features, out_features;
  int64_t y_stride, x_stride;
  const int64_t* rows_by_slot = nullptr;  // those with adapters, the rows of a slot side by side
  float* low = nullptr;                   // scratch memory: [rows_by_slot, parts, max_rank]
};
struct LoraTile {
  int64_t slot, part;
  int64_t row_begin, row_end;  // in rows_by_slot, all of this slot
  int64_t begin, end;
};
using Lora = void(const LoraArgs&, const LoraTile&);

// Sequences whose tokens lie one after the other: those of sequence s are [starts[s], starts[s + 1]). Each
// has a slot of its own.
struct Sequences {
  const int64_t* slots;   // [count]
  const int32_t* starts;  // [count + 1]
  int64_t count;
};

// out[t, c] = f(bias[c] + sum_j taps[j, c] x[t - width + 1 + j, c]), in the order of j. f is SiLU where it is
// activated, and changes nothing elsewhere. What lies before a sequence's first token is in its state, the
// oldest row first; after the last token the state has the last inputs. Item s * chunks + i: sequence s,
// channels from i * kConvChannels on. out must not overlap x.
struct CausalConvArgs {
  void* out;          // [tokens, channels]
  const void* x;      // [tokens, channels]
  const float* taps;  // [width, channels], contiguous
  const float* bias;  // [channels], or null
  void* states;       // [slots, width - 1, channels], contiguous
  Sequences sequences;
  int64_t channels, width;  // width: 2 to kMaxConvWidth
  int64_t out_stride, x_stride;
  bool activated;
};
constexpr int64_t kConvChannels = 256, kMaxConvWidth = 16;
using CausalConv = void(const CausalConvArgs&, int64_t begin, int64_t end);

// Linear attention with a state S [key_dim, value_dim] per head of values:
//
//     S = exp(log_decay[t]) S + k u^T,   out[t] = q S + skip v
//
// where u = strength[t] v (Mamba 2's selective scan: Dao and Gu 2024, arXiv:2405.21060), or with delta
// u = strength[t] (v - k S) after the decay (the gated delta rule: Yang et al. 2024, arXiv:2412.06464), where
// k is a unit vector and q one of the length key_dim^-1/2. Each of key_heads serves neighboring heads.
//
// A state is [heads, ceil(value_dim / kStateColumns), key_dim, kStateColumns]: columns are independent, and
// these of a token's pass lie side by side. Item (s * heads + h) * chunks + i: columns from i * kScanColumns
// on. The bits of a result depend neither on the other sequences nor on how a prompt is cut.
struct StateScanArgs {
  float* out;              // [tokens, heads, value_dim], contiguous
  const void* query;       // [tokens, key_heads, key_dim]
  const void* key;         // as query
  const void* value;       // [tokens, heads, value_dim]
  const float* log_decay;  // [tokens, heads], contiguous, at most 0
  const float* strength;   // the same
  const float* skip;       // [heads], or null for 0
  float* states;           // [slots, state_floats(...)], contiguous
  Sequences sequences;
  int64_t heads, key_heads, key_dim, value_dim;  // key_dim: at most kMaxStateKeys
  int64_t query_stride, query_head_stride, key_stride, key_head_stride, value_stride, value_head_stride;
  bool delta;
};
constexpr int64_t kStateColumns = 16, kScanColumns = 64, kMaxStateKeys = 512;
constexpr int64_t state_floats(int64_t heads, int64_t key_dim, int64_t value_dim) {
  return heads * ((value_dim + kStateColumns - 1) / kStateColumns) * key_dim * kStateColumns;
}
using StateScan = void(const StateScanArgs&, int64_t begin, int64_t end);

// What sampling needs of a row of logits, in chunks, the last of which may be shorter. Range: chunks. No
// logit is a NaN.
//   chunk_maxima   out[c] = the greatest logit of chunk c
//   chunk_weights  out[c] = the sum of the weights of chunk c, where a logit x of `least` or more weighs
//                  exp((x - greatest) * inverse_temperature), and others 0
inline constexpr int64_t kLogitChunk = 256;
struct LogitChunksArgs {
  float* out;           // [chunks]
  float* weights;       // [size], of chunk_weights, or null: nobody wants them
  const float* logits;  // [size]
  int64_t size;
  float greatest, inverse_temperature, least;  // no logit is above `greatest`
};
using LogitChunks = void(const LogitChunksArgs&, int64_t begin, int64_t end);

// The element functions of csrc/kernels/activation.h: X(op, function, ...).
#define ARMLLM_GATED_FUNCTIONS(X, ...) \
  X(silu_and_mul, silu, ##__VA_ARGS__) \
  X(gelu_and_mul, gelu, ##__VA_ARGS__) \
  X(gelu_tanh_and_mul, gelu_tanh, ##__VA_ARGS__)
#define ARMLLM_PLAIN_FUNCTIONS(X, ...)     \
  X(gelu, gelu, ##__VA_ARGS__)             \
  X(gelu_tanh, gelu_tanh, ##__VA_ARGS__)   \
  X(quick_gelu, quick_gelu, ##__VA_ARGS__) \
  X(relu, relu, ##__VA_ARGS__)
#define ARMLLM_FUNCTIONS(X, ...)           \
  ARMLLM_GATED_FUNCTIONS(X, ##__VA_ARGS__) \
  ARMLLM_PLAIN_FUNCTIONS(X, ##__VA_ARGS__)

// Every op: its contract and its name in kernels.toml.
#define ARMLLM_FUNCTION_OP(op, function, X, storage) X(Activation, op##_##storage)
#define ARMLLM_OPS_OF(X, storage)                    \
  X(RmsNorm, rms_norm_##storage)                     \
  X(FusedAddRmsNorm, fused_add_rms_norm_##storage)   \
  X(LayerNorm, layer_norm_##storage)                 \
  X(RotaryEmbedding, rotary_embedding_##storage)     \
  ARMLLM_FUNCTIONS(ARMLLM_FUNCTION_OP, X, storage)   \
  X(KvCacheLayoutOf, kv_cache_layout_##storage)      \
  X(WriteKvCache, write_kv_cache_##storage)          \
  X(PagedAttention, paged_attention_##storage)       \
  X(KvCacheLayoutOf, kv_cache_layout_int8_##storage) \
  X(WriteKvCache, write_kv_cache_int8_##storage)     \
  X(PagedAttention, paged_attention_int8_##storage)  \
  X(QuantizeRows, quantize_rows_##storage)           \
  X(Matmul, matmul_w8a8_##storage)                   \
  X(Matmul, matmul_w4a8_##storage)                   \
  X(Matmul, dense_matmul_##storage)                  \
  X(Matmul, panel_matmul_##storage)                  \
  X(DecodeFp8, decode_fp8_##storage)                 \
  X(WeightedSum, weighted_sum_##storage)             \
  X(Lora, lora_shrink_##storage)                     \
  X(Lora, lora_expand_##storage)                     \
  X(CausalConv, causal_conv_##storage)               \
  X(StateScan, state_scan_##storage)
#define ARMLLM_OPS(X)                \
  ARMLLM_OPS_OF(X, f32)              \
  ARMLLM_OPS_OF(X, f16)              \
  ARMLLM_OPS_OF(X, bf16)             \
  X(LogitChunks, chunk_maxima_f32)   \
  X(LogitChunks, chunk_weights_f32)  \
  X(Activation, convert_f32_to_f16)  \
  X(Activation, convert_f32_to_bf16) \
  X(Activation, convert_f16_to_f32)  \
  X(Activation, convert_f16_to_bf16) \
  X(Activation, convert_bf16_to_f32) \
  X(Activation, convert_bf16_to_f16)

// The chosen kernel of every op; none is null after dispatch.
struct KernelTable {
#define ARMLLM_TABLE_ENTRY(type, name) type* name;
  ARMLLM_OPS(ARMLLM_TABLE_ENTRY)
#undef ARMLLM_TABLE_ENTRY
};

}  // namespace armllm
