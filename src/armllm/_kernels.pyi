# The compiled kernels (csrc/python): addresses and sizes in, nothing checked but indices.

import enum

import torch

class Storage(enum.Enum):
    f32 = 0
    f16 = 1
    bf16 = 2

class KvCacheType(enum.Enum):
    plain = 0
    int8 = 1

def rms_norm(
    storage: Storage,
    out: int,
    x: int,
    weight: int,
    rows: int,
    hidden: int,
    out_stride: int,
    x_stride: int,
    eps: float,
    weight_offset: float,
    /,
) -> None: ...
def fused_add_rms_norm(
    storage: Storage,
    x: int,
    residual: int,
    weight: int,
    rows: int,
    hidden: int,
    x_stride: int,
    residual_stride: int,
    eps: float,
    weight_offset: float,
    /,
) -> None: ...
def rotary_embedding(
    storage: Storage,
    positions: int,
    query: int,
    key: int,
    cos_sin_cache: int,
    tokens: int,
    num_query_heads: int,
    num_key_heads: int,
    head_dim: int,
    rotary_dim: int,
    query_token_stride: int,
    query_head_stride: int,
    key_token_stride: int,
    key_head_stride: int,
    cache_stride: int,
    max_position: int,
    interleaved: bool,
    /,
) -> None: ...
def layer_norm(
    storage: Storage,
    out: int,
    x: int,
    weight: int,
    bias: int,
    rows: int,
    hidden: int,
    out_stride: int,
    x_stride: int,
    eps: float,
    /,
) -> None: ...
def silu_and_mul(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def gelu_and_mul(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def gelu_tanh_and_mul(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def gelu(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def gelu_tanh(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def quick_gelu(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def relu(
    storage: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...
def convert(
    to: Storage, from_: Storage, out: int, x: int, rows: int, width: int, out_stride: int, x_stride: int, /
) -> None: ...

# Calls with plain tensors (csrc/python/plain.cpp): True when done, False when the face must look closer.
def plain_types(tensor: type, parameter: type, /) -> bool: ...
def plain_rms_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float, /
) -> bool: ...
def plain_fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float, /
) -> bool: ...
def plain_layer_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, /
) -> bool: ...
def plain_linear(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, /
) -> bool: ...
def plain_panel_linear(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_features: int,
    in_features: int,
    /,
) -> bool: ...
def plain_silu_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_gelu_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_gelu_tanh_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_gelu(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_gelu_tanh(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_quick_gelu(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_relu(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_convert(out: torch.Tensor, x: torch.Tensor, /) -> bool: ...
def plain_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
    /,
) -> bool: ...
def plain_write_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: torch.Tensor,
    layout: tuple[int | str, ...],
    slot_mapping: torch.Tensor,
    /,
) -> bool: ...
def plain_paged_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: torch.Tensor,
    layout: tuple[int | str, ...],
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    logit_soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    /,
) -> bool: ...
def plain_matmul_w4a8(
    out: torch.Tensor,
    x: torch.Tensor,
    data: torch.Tensor,
    weight: tuple[int | str, ...],
    bias: torch.Tensor | None,
    x_scale: float | None,
    /,
) -> bool: ...

plain_matmul_w8a8 = plain_matmul_w4a8

def kv_cache_layout(
    storage: Storage, cache_type: KvCacheType, num_kv_heads: int, head_dim: int, block_size: int, /
) -> tuple[int, int, int, str]: ...
def write_kv_cache(
    storage: Storage,
    cache_type: KvCacheType,
    key: int,
    value: int,
    cache: int,
    slot_mapping: int,
    tokens: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    num_blocks: int,
    key_token_stride: int,
    key_head_stride: int,
    value_token_stride: int,
    value_head_stride: int,
    /,
) -> None: ...
def paged_attention(
    storage: Storage,
    cache_type: KvCacheType,
    out: int,
    query: int,
    cache: int,
    block_tables: int,
    query_start_loc: int,
    seq_lens: int,
    num_tokens: int,
    num_seqs: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    num_blocks: int,
    max_blocks: int,
    block_table_stride: int,
    out_token_stride: int,
    out_head_stride: int,
    query_token_stride: int,
    query_head_stride: int,
    scale: float,
    sliding_window: int,
    logit_soft_cap: float,
    alibi_slopes: int,
    sinks: int,
    /,
) -> None: ...
def quantize_rows(
    storage: Storage,
    q: int,
    scales: int,
    zeros: int,
    x: int,
    rows: int,
    width: int,
    q_stride: int,
    x_stride: int,
    /,
) -> None: ...
def weight_layout(bits: int, /) -> tuple[str, str]: ...
def packed_bytes(
    target: str, bits: int, out_features: int, in_features: int, group_size: int, zero_points: bool, /
) -> int: ...
def weight_layouts() -> dict[str, str]: ...
def pack_weight(
    target: str,
    bits: int,
    packed: int,
    q: int,
    scales: int,
    offsets: int,
    out_features: int,
    in_features: int,
    group_size: int,
    q_stride: int,
    /,
) -> None: ...
def matmul(
    bits: int,
    storage: Storage,
    out: int,
    x: int,
    bias: int,
    weight: int,
    rows: int,
    out_features: int,
    in_features: int,
    group_size: int,
    zero_points: bool,
    out_stride: int,
    x_stride: int,
    x_scale: float,
    /,
) -> None: ...

class Function(enum.Enum):
    silu_and_mul = 0
    gelu_and_mul = 1
    gelu_tanh_and_mul = 2

def moe(
    bits: int,
    storage: Storage,
    function: Function,
    out: int,
    x: int,
    expert_ids: int,
    expert_weights: int,
    gate_up: int,
    down: int,
    tokens: int,
    per_token: int,
    num_experts: int,
    hidden: int,
    width: int,
    gate_up_group: int,
    gate_up_zeros: bool,
    down_group: int,
    down_zeros: bool,
    out_stride: int,
    x_stride: int,
    /,
) -> None: ...
def report() -> dict[str, dict[str, str]]: ...
def targets() -> list[str]: ...
def problem() -> str: ...
def set_num_threads(threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def use_own_threads(own: bool, /) -> None: ...
def thread_backend() -> str: ...
