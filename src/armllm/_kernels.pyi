# The compiled kernels (csrc/python), which check their arguments. armllm.kernels says what each computes.

import builtins

import torch

def use_torch(tensor_type: type, tensor: torch.Tensor, negative: torch.Tensor, /) -> None: ...
def rms_norm(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float, /
) -> None: ...
def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, weight_offset: float, /
) -> None: ...
def layer_norm(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    residual: torch.Tensor | None,
    /,
) -> None: ...
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
    /,
) -> None: ...
def silu_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def gelu_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def gelu_tanh_and_mul(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def gelu(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def gelu_tanh(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def quick_gelu(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def relu(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def convert(out: torch.Tensor, x: torch.Tensor, /) -> None: ...
def gather_rows(out: torch.Tensor, table: torch.Tensor, rows: torch.Tensor, /) -> None: ...
def kv_cache_layout(
    dtype: str, cache_dtype: str, num_kv_heads: int, head_dim: int, block_size: int, /
) -> tuple[int, int, int, str]: ...
def write_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    cache: torch.Tensor,
    layout: tuple[int | str, ...],
    slot_mapping: torch.Tensor,
    /,
) -> None: ...
def paged_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    cache: torch.Tensor,
    layout: tuple[int | str, ...],
    block_tables: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    chunk_size: int | None,
    bidirectional: bool,
    logit_soft_cap: float | None,
    alibi_slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
    /,
) -> None: ...
def varlen_attention(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float,
    sliding_window: int | None,
    bidirectional: bool,
    logit_soft_cap: float | None,
    /,
) -> None: ...
def linear(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, /
) -> None: ...
def panel_linear(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_features: int,
    in_features: int,
    /,
) -> None: ...
def head_linear(
    out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, out_features: int, in_features: int, /
) -> None: ...
def fp8_linear(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    out_features: int,
    in_features: int,
    group_size: int,
    /,
) -> None: ...
def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    ranks: torch.Tensor,
    part_ends: torch.Tensor,
    slots: torch.Tensor,
    norms: torch.Tensor | None,
    bias: torch.Tensor | None,
    /,
) -> None: ...
def causal_conv(
    out: torch.Tensor,
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    activated: bool,
    /,
) -> None: ...
def state_scan(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    strength: torch.Tensor,
    skip: torch.Tensor | None,
    states: torch.Tensor,
    slots: torch.Tensor,
    query_start_loc: torch.Tensor,
    delta: bool,
    /,
) -> None: ...
def sample(
    token_ids: torch.Tensor,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    uniforms: torch.Tensor,
    /,
) -> None: ...
def quantize_rows(
    q: torch.Tensor, scales: torch.Tensor, x: torch.Tensor, zeros: torch.Tensor | None, /
) -> None: ...
def matmul_w4a8(
    out: torch.Tensor,
    x: torch.Tensor,
    data: torch.Tensor,
    weight: tuple[int | str, ...],
    bias: torch.Tensor | None,
    x_scale: float | None,
    /,
) -> None: ...
def matmul_w8a8(
    out: torch.Tensor,
    x: torch.Tensor,
    data: torch.Tensor,
    weight: tuple[int | str, ...],
    bias: torch.Tensor | None,
    x_scale: float | None,
    /,
) -> None: ...
def check_quantized(
    q: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    offsets: torch.Tensor | None,
    bits: int,
    values: str,
    target: str,
    /,
) -> tuple[int, int, str, str]: ...
def pack_weight(
    packed: torch.Tensor,
    q: torch.Tensor,
    scales: torch.Tensor,
    offsets: torch.Tensor | None,
    bits: int,
    values: str,
    target: str,
    /,
) -> None: ...
def touch_panels(panels: torch.Tensor, /) -> None: ...
def pack_panels(panels: torch.Tensor, weight: torch.Tensor, first: int, /) -> None: ...
def pack_fp8(panels: torch.Tensor, weight: torch.Tensor, first: int, dtype: str, /) -> None: ...
def weight_layout(bits: int, /) -> tuple[str, str, int]: ...
def check_matrix(
    name: str,
    weight: torch.Tensor,
    dtype: str | None,
    rows: int | None,
    columns: int | None,
    contiguous: bool,
    /,
) -> None: ...
def check_packed(name: str, data: torch.Tensor, weight: tuple[int | str, ...], /) -> None: ...
def moe(
    weights: str,
    out: torch.Tensor,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    addresses: torch.Tensor,
    experts: tuple[int | str, ...],
    activation: str,
    alpha: float | None,
    limit: float | None,
    gate_up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    gatherer: Gatherer | None,
    /,
) -> None: ...
def weight_layouts() -> dict[str, str]: ...
def report() -> dict[str, dict[str, str]]: ...
def targets() -> list[str]: ...
def problem() -> str: ...
def set_num_threads(threads: int, /) -> None: ...
def get_num_threads() -> int: ...
def use_own_threads(own: bool, /) -> None: ...
def count_threads(on: bool, /) -> None: ...
def thread_counts() -> tuple[int, int, int]: ...
def thread_backend() -> str: ...

class Ranks:
    LATE: int
    def __init__(self, file: int, rank: int, size: int, seconds: float, /) -> None: ...
    @staticmethod
    def bytes(size: int, /) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def failure(self) -> int: ...
    def send(self, message: builtins.bytes, /) -> None: ...
    def receive(self) -> builtins.bytes: ...
    def awake(self, rank: int, /) -> float: ...
    def fail(self, code: int, /) -> None: ...

class Gatherer:
    part: int
    whole: int
    def __init__(
        self, ranks: Ranks, pieces: list[list[tuple[int, int, int]]], first_only: bool = False, /
    ) -> None: ...

def gather_parts(out: torch.Tensor, part: torch.Tensor, gatherer: Gatherer, /) -> None: ...

class Program:
    def run(self) -> None: ...

def start_recording() -> None: ...
def take_recording() -> Program | None: ...
def stop_recording() -> None: ...
