// The table entries of a target, one set per storage type.

#pragma once

#include "simd/primitives.h"

#define ARMLLM_GATED_ENTRY(op, function, T, suffix)                                      \
  ARMLLM_ENTRY void op##_##suffix(const ActivationArgs& a, int64_t begin, int64_t end) { \
    apply_and_mul<T, function##_function>(a, begin, end);                                \
  }
#define ARMLLM_PLAIN_ENTRY(op, function, T, suffix)                                      \
  ARMLLM_ENTRY void op##_##suffix(const ActivationArgs& a, int64_t begin, int64_t end) { \
    apply<T, T, function##_function>(a, begin, end);                                     \
  }
#define ARMLLM_ELEMENTWISE_ENTRIES(T, suffix)                                                               \
  ARMLLM_ENTRY void rms_norm_##suffix(const RmsNormArgs& a, int64_t begin, int64_t end) {                   \
    rms_norm<T>(a, begin, end);                                                                             \
  }                                                                                                         \
  ARMLLM_ENTRY void fused_add_rms_norm_##suffix(const FusedAddRmsNormArgs& a, int64_t begin, int64_t end) { \
    fused_add_rms_norm<T>(a, begin, end);                                                                   \
  }                                                                                                         \
  ARMLLM_ENTRY void layer_norm_##suffix(const LayerNormArgs& a, int64_t begin, int64_t end) {               \
    layer_norm<T>(a, begin, end);                                                                           \
  }                                                                                                         \
  ARMLLM_ENTRY void rotary_embedding_##suffix(const RotaryArgs& a, int64_t begin, int64_t end) {            \
    rotary_embedding<T>(a, begin, end);                                                                     \
  }                                                                                                         \
  ARMLLM_GATED_FUNCTIONS(ARMLLM_GATED_ENTRY, T, suffix)                                                     \
  ARMLLM_PLAIN_FUNCTIONS(ARMLLM_PLAIN_ENTRY, T, suffix)                                                     \
  ARMLLM_ENTRY void decode_fp8_##suffix(const DecodeFp8Args& a) { fp8::decode<T>(a); }                      \
  ARMLLM_ENTRY void weighted_sum_##suffix(const WeightedSumArgs& a, int64_t begin, int64_t end) {           \
    weighted_sum<T>(a, begin, end);                                                                         \
  }                                                                                                         \
  ARMLLM_ENTRY void lora_shrink_##suffix(const LoraArgs& a, const LoraTile& tile) {                         \
    lora::shrink<T>(a, tile);                                                                               \
  }                                                                                                         \
  ARMLLM_ENTRY void lora_expand_##suffix(const LoraArgs& a, const LoraTile& tile) {                         \
    lora::expand<T>(a, tile);                                                                               \
  }                                                                                                         \
  ARMLLM_ENTRY void causal_conv_##suffix(const CausalConvArgs& a, int64_t begin, int64_t end) {             \
    recurrence::convolve<T>(a, begin, end);                                                                 \
  }                                                                                                         \
  ARMLLM_ENTRY void state_scan_##suffix(const StateScanArgs& a, int64_t begin, int64_t end) {               \
    recurrence::scan<T>(a, begin, end);                                                                     \
  }

#define ARMLLM_CONVERT_ENTRY(From, from, To, to)                                                    \
  ARMLLM_ENTRY void convert_##from##_to_##to(const ActivationArgs& a, int64_t begin, int64_t end) { \
    apply<To, From, identity>(a, begin, end);                                                       \
  }
#define ARMLLM_CONVERT_ENTRIES                       \
  ARMLLM_CONVERT_ENTRY(float, f32, float16, f16)     \
  ARMLLM_CONVERT_ENTRY(float, f32, bfloat16, bf16)   \
  ARMLLM_CONVERT_ENTRY(float16, f16, float, f32)     \
  ARMLLM_CONVERT_ENTRY(float16, f16, bfloat16, bf16) \
  ARMLLM_CONVERT_ENTRY(bfloat16, bf16, float, f32)   \
  ARMLLM_CONVERT_ENTRY(bfloat16, bf16, float16, f16)

#define ARMLLM_SAMPLING_ENTRIES                                                               \
  ARMLLM_ENTRY void chunk_maxima_f32(const LogitChunksArgs& a, int64_t begin, int64_t end) {  \
    sampling::chunk_maxima(a, begin, end);                                                    \
  }                                                                                           \
  ARMLLM_ENTRY void chunk_weights_f32(const LogitChunksArgs& a, int64_t begin, int64_t end) { \
    sampling::chunk_weights(a, begin, end);                                                   \
  }

// The KV cache of one storage type, given the functions that know its layout.
#define ARMLLM_ATTENTION_ENTRIES(T, suffix, layout_of, write, scratch, split, rows)                          \
  ARMLLM_ENTRY void kv_cache_layout_##suffix(const KvCacheShape& shape, KvCacheLayout& layout) {             \
    layout_of(shape, layout);                                                                                \
  }                                                                                                          \
  ARMLLM_ENTRY void write_kv_cache_##suffix(const WriteKvCacheArgs& a, int64_t begin, int64_t end) {         \
    write(a, begin, end);                                                                                    \
  }                                                                                                          \
  static ARMLLM_ENTRY int64_t attention_scratch_bytes_##suffix(const KvCacheShape& shape) {                  \
    return scratch(shape);                                                                                   \
  }                                                                                                          \
  static ARMLLM_ENTRY void attention_split_##suffix(const PagedAttentionArgs& a, const AttentionTile& tile,  \
                                                    int64_t number, const AttentionState& state,             \
                                                    void* memory) {                                          \
    split(a, tile, number, state, memory);                                                                   \
  }                                                                                                          \
  static                                                                                                     \
      ARMLLM_ENTRY void attention_merge_##suffix(const PagedAttentionArgs& a, const AttentionTile& tile,     \
                                                 const AttentionState& into, const AttentionState& next) {   \
    attention_merge(a, tile, into, next);                                                                    \
  }                                                                                                          \
  static ARMLLM_ENTRY void attention_finish_##suffix(const PagedAttentionArgs& a, const AttentionTile& tile, \
                                                     const AttentionState& state) {                          \
    attention_finish<T>(a, tile, state);                                                                     \
  }                                                                                                          \
  extern const AttentionKernel paged_attention_##suffix;                                                     \
  const AttentionKernel paged_attention_##suffix = {rows, attention_scratch_bytes_##suffix,                  \
                                                    attention_split_##suffix, attention_merge_##suffix,      \
                                                    attention_finish_##suffix};

#define ARMLLM_FMA_ATTENTION_ENTRIES(T, suffix)                                                       \
  ARMLLM_ATTENTION_ENTRIES(T, suffix, kv_cache_layout<T>, write_kv_cache<T>, attention_scratch_bytes, \
                           attention_split<T>, kTileRows)

#define ARMLLM_INT8_ATTENTION_ENTRY(T, suffix)                                                    \
  ARMLLM_ATTENTION_ENTRIES(T, suffix, int8_cache::kv_cache_layout, int8_cache::write_kv_cache<T>, \
                           int8_cache::scratch_bytes, int8_cache::attention_split<T>, int8_cache::kTileRows)
#define ARMLLM_INT8_ATTENTION_ENTRIES            \
  ARMLLM_INT8_ATTENTION_ENTRY(float, int8_f32)   \
  ARMLLM_INT8_ATTENTION_ENTRY(float16, int8_f16) \
  ARMLLM_INT8_ATTENTION_ENTRY(bfloat16, int8_bf16)

#define ARMLLM_QUANTIZE_ENTRY(T, suffix)                                                            \
  ARMLLM_ENTRY void quantize_rows_##suffix(const QuantizeRowsArgs& a, int64_t begin, int64_t end) { \
    quantize_rows<T>(a, begin, end);                                                                \
  }

// Products with floating-point weights, dense_matmul or panel_matmul, given the namespace of the functions
// that know how, and the bytes that they decode panels into for many rows.
#define ARMLLM_FLOAT_MATMUL_ENTRIES(op, T, suffix, space, decoded)                                           \
  static ARMLLM_ENTRY int64_t op##_panel_bytes_##suffix(const WeightShape& s) {                              \
    return space::panel_bytes<T>(s);                                                                         \
  }                                                                                                          \
  static ARMLLM_ENTRY int64_t op##_activation_bytes_##suffix(const WeightShape& s, int64_t rows) {           \
    return space::activation_bytes(s, rows);                                                                 \
  }                                                                                                          \
  static ARMLLM_ENTRY void op##_put_rows_##suffix(const MatmulArgs& a, int64_t begin, int64_t end) {         \
    space::put_rows<T>(a, begin, end);                                                                       \
  }                                                                                                          \
  static ARMLLM_ENTRY void op##_gather_##suffix(const MatmulArgs& a, const GatherArgs& from, int64_t begin,  \
                                                int64_t end) {                                               \
    space::gather<T>(a, from, begin, end);                                                                   \
  }                                                                                                          \
  static ARMLLM_ENTRY int64_t op##_tiles_##suffix(const WeightShape&, int64_t rows) {                        \
    return space::tiles(rows);                                                                               \
  }                                                                                                          \
  static ARMLLM_ENTRY void op##_multiply_##suffix(const MatmulArgs& a, int64_t tile_begin, int64_t tile_end, \
                                                  int64_t panel_begin, int64_t panel_end) {                  \
    space::multiply<T>(a, tile_begin, tile_end, panel_begin, panel_end);                                     \
  }                                                                                                          \
  extern const MatmulKernel op##_matmul_##suffix;                                                            \
  const MatmulKernel op##_matmul_##suffix = {nullptr,                                                        \
                                             space::kColumns,                                                \
                                             op##_panel_bytes_##suffix,                                      \
                                             op##_activation_bytes_##suffix,                                 \
                                             op##_put_rows_##suffix,                                         \
                                             op##_gather_##suffix,                                           \
                                             op##_tiles_##suffix,                                            \
                                             op##_multiply_##suffix,                                         \
                                             decoded,                                                        \
                                             kDecodedRows,                                                   \
                                             space::features_together<T>(),                                  \
                                             1,                                                              \
                                             space::kPanelsOfTile,                                           \
                                             sizeof(T) == sizeof(float)};

// Everything that the primitives of a target give.
#define ARMLLM_ENTRIES_OF(T, suffix)                      \
  ARMLLM_ELEMENTWISE_ENTRIES(T, suffix)                   \
  ARMLLM_FMA_ATTENTION_ENTRIES(T, suffix)                 \
  ARMLLM_QUANTIZE_ENTRY(T, suffix)                        \
  ARMLLM_FLOAT_MATMUL_ENTRIES(dense, T, suffix, dense, 0) \
  ARMLLM_FLOAT_MATMUL_ENTRIES(panel, T, suffix, panels, panels::widened_bytes<T>())
#define ARMLLM_ALL_ENTRIES        \
  ARMLLM_CONVERT_ENTRIES          \
  ARMLLM_SAMPLING_ENTRIES         \
  ARMLLM_INT8_ATTENTION_ENTRIES   \
  ARMLLM_ENTRIES_OF(float, f32)   \
  ARMLLM_ENTRIES_OF(float16, f16) \
  ARMLLM_ENTRIES_OF(bfloat16, bf16)
