"""The kernels in plain torch: the same functions with the same signatures as `armllm.kernels`, for tests.

Arithmetic is fp32 whatever the storage type, and results are rounded once, when they are stored. The KV cache
layout is the plainest there is: per block, all keys then all values, each ``[num_kv_heads, block_size,
head_dim]``; with int8, behind them the scales of both, each float32 ``[num_kv_heads, block_size]``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from armllm.kernels.lora import LoraSlots  # noqa: F401 - part of the same interface
from armllm.kernels.matmul import Values  # noqa: F401 - part of the same interface
from armllm.kernels.moe import ClampedSwiGLU  # noqa: F401 - part of the same interface
from armllm.kernels.recurrence import SequenceStates, state_size  # noqa: F401 - part of the same interface
from armllm.kernels.reference_lora import add_lora  # noqa: F401 - part of the same interface
from armllm.kernels.reference_matmul import (  # noqa: F401 - part of the same interface
    PackedWeight,
    check_packed,
    matmul_w4a8,
    matmul_w8a8,
    pack_weight,
    quantize_rows,
)
from armllm.kernels.reference_moe import (  # noqa: F401 - part of the same interface
    Experts,
    join_experts,
    moe_bf16,
    moe_f16,
    moe_f32,
    moe_w4a8,
    moe_w8a8,
)
from armllm.kernels.reference_recurrence import (  # noqa: F401 - part of the same interface
    causal_conv,
    gated_delta_rule,
    selective_scan,
)
from armllm.kernels.reference_sampling import sample  # noqa: F401 - part of the same interface
from armllm.kernels.sampling import SamplingMetadata  # noqa: F401 - part of the same interface

OPS = (
    "rms_norm",
    "fused_add_rms_norm",
    "layer_norm",
    "rotary_embedding",
    "silu_and_mul",
    "gelu_and_mul",
    "gelu",
    "quick_gelu",
    "relu",
    "convert",
    "write_kv_cache",
    "paged_attention",
    "quantize_rows",
    "matmul_w8a8",
    "matmul_w4a8",
    "add_lora",
    "causal_conv",
    "gated_delta_rule",
    "selective_scan",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KVCacheLayout:
    """One layer's cache: ``block_bytes`` for ``block_size`` tokens of keys and values in every head."""

    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_kv_heads: int
    head_dim: int
    block_size: int
    block_bytes: int
    target: str = "reference"

    def views(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, views ``[num_blocks, num_kv_heads, block_size, head_dim]`` of the cache."""
        shape = (cache.shape[0], 2, self.num_kv_heads, self.block_size, self.head_dim)
        size = math.prod(shape[1:]) * self.cache_dtype.itemsize
        both = cache[:, :size].view(self.cache_dtype).view(shape)
        return both[:, 0], both[:, 1]

    def scales(self, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Of an int8 cache the scales of keys and values, ``[num_blocks, num_kv_heads, block_size]``."""
        shape = (cache.shape[0], 2, self.num_kv_heads, self.block_size)
        both = cache[:, -math.prod(shape[1:]) * 4 :].view(torch.float32).view(shape)
        return both[:, 0], both[:, 1]


PanelWeight = Tensor
"""There are no panels here."""
Fp8Weight = Tensor
"""E4M3 is decoded."""


def pack_panels(weight: Tensor) -> PanelWeight:
    """Return it as it is."""
    return weight


def pack_fp8(weight: Tensor, scales: Tensor, *, group_size: int = 0, dtype: torch.dtype) -> Fp8Weight:
    """Decode it: each number times its scale, rounded to ``dtype``."""
    size = group_size or max(1, weight.shape[1])
    return (weight.float() * scales.repeat_interleave(size, -1)[:, : weight.shape[1]]).to(dtype)


def linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Compute x W^T + b of ``x[T, K]`` and ``weight[N, K]``."""
    product = torch.nn.functional.linear(x.float(), weight.float())
    out.copy_(product if bias is None else product + bias.float())


def head_linear(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Compute x W^T per head of ``x[T, H, K]`` and ``weight[H * N, K]``."""
    each = weight.float().view(x.shape[1], -1, x.shape[2])
    out.copy_(torch.einsum("thk,hnk->thn", x.float(), each))


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0) -> None:
    """Compute x / sqrt(mean(x^2) + eps) * (weight + offset), per row of ``x[T, H]``."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out.copy_(wide * scale * (weight.float() + weight_offset))


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0
) -> None:
    """Residual += x, then x = rms_norm(residual), both in place, ``[T, H]``."""
    residual.copy_(residual.float() + x.float())
    rms_norm(x, residual, weight, eps, weight_offset=weight_offset)


def layer_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> None:
    """Compute (x - mean) / sqrt(variance + eps) * weight + bias, per row of ``x[T, H]`` (Ba et al. 2016).

    With ``residual[T, H]``: residual += x in place, then its norm.
    """
    if residual is not None:
        x = residual.copy_(residual.float() + x.float())
    wide_bias = None if bias is None else bias.float()
    out.copy_(torch.nn.functional.layer_norm(x.float(), x.shape[-1:], weight.float(), wide_bias, eps))


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, interleaved: bool = False
) -> None:
    """Rotate ``query[T, Hq, D]`` and ``key[T, Hk, D]`` in place (Su et al. 2021).

    ``cos_sin_cache`` is fp32 ``[max_position, rotary_dim]``, cosines then sines; dimensions past rotary_dim
    are kept. Pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) when interleaved.
    """
    rotary_dim = cos_sin_cache.shape[1]
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    for x in (query, key):
        rotated = x[..., :rotary_dim]
        first, second = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, dim=-1)
        turned = first.float() * cos - second.float() * sin, second.float() * cos + first.float() * sin
        first.copy_(turned[0])
        second.copy_(turned[1])


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """``out[T, d]`` = silu(gate) * up, where ``x[T, 2d]`` holds gate then up."""
    gate, up = x.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.silu(gate) * up)


def gelu_and_mul(out: Tensor, x: Tensor, approximate: str = "none") -> None:
    """``out[T, d]`` = gelu(gate) * up, where ``x[T, 2d]`` holds gate then up."""
    gate, up = x.float().chunk(2, dim=-1)
    out.copy_(torch.nn.functional.gelu(gate, approximate=approximate) * up)


def gelu(out: Tensor, x: Tensor, approximate: str = "none") -> None:
    """Compute x * Phi(x), exact or with tanh, ``[T, d]`` (Hendrycks and Gimpel 2016)."""
    out.copy_(torch.nn.functional.gelu(x.float(), approximate=approximate))


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Compute x * sigmoid(1.702 x), ``[T, d]``."""
    out.copy_(x.float() * torch.sigmoid(1.702 * x.float()))


def relu(out: Tensor, x: Tensor) -> None:
    """max(x, 0), ``[T, d]``."""
    out.copy_(torch.relu(x))


def convert(out: Tensor, x: Tensor) -> None:
    """Store x in the dtype of ``out``, rounded to nearest even, ``[T, d]``."""
    out.copy_(x)


def gather_rows(out: Tensor, table: Tensor, rows: Tensor) -> None:
    """Store ``table[rows]``, ``[T, d]``."""
    out.copy_(table[rows])


def kv_cache_layout(
    dtype: torch.dtype,
    *,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    cache_dtype: torch.dtype | None = None,
) -> KVCacheLayout:
    """Sizes of one layer's cache for this model shape."""
    cache_dtype = cache_dtype or dtype
    scales = 4 if cache_dtype is torch.int8 else 0
    block_bytes = 2 * num_kv_heads * block_size * (head_dim * cache_dtype.itemsize + scales)
    return KVCacheLayout(
        dtype=dtype,
        cache_dtype=cache_dtype,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        block_bytes=block_bytes,
    )


def allocate_kv_cache(layout: KVCacheLayout, num_blocks: int) -> Tensor:
    """Uninitialized uint8 ``[num_blocks, block_bytes]``."""
    return torch.empty(num_blocks, layout.block_bytes, dtype=torch.uint8)


def write_kv_cache(
    key: Tensor, value: Tensor, cache: Tensor, layout: KVCacheLayout, slot_mapping: Tensor
) -> None:
    """Store ``key[T, Hk, D]``, ``value`` at ``slot_mapping[T]``: block * block_size + offset, -1 nowhere."""
    wanted = slot_mapping >= 0
    slots = slot_mapping[wanted]
    if len(set(slots.tolist())) != slots.numel():
        raise ValueError("slot_mapping has a slot twice: each takes one token")
    blocks, offsets = slots // layout.block_size, slots % layout.block_size
    for cached, scales, x in zip(layout.views(cache), layout.scales(cache), (key, value), strict=True):
        if layout.cache_dtype is torch.int8:
            cached[blocks, :, offsets], scales[blocks, :, offsets] = _rounded(x[wanted])
        else:
            cached[blocks, :, offsets] = x[wanted]


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Int8 of the shape of ``x``, and the scale of each of its last dimension's vectors."""
    rows = x.reshape(-1, x.shape[-1])
    q, scales = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows))
    quantize_rows(q, scales, rows)
    return q.view(x.shape), scales.view(x.shape[:-1])


def paged_attention(  # noqa: PLR0917 - the kernels take what they take
    out: Tensor,
    query: Tensor,
    cache: Tensor,
    layout: KVCacheLayout,
    block_tables: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    sliding_window: int | None = None,
    chunk_size: int | None = None,
    bidirectional: bool = False,
    logit_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Attention of ``query[T, Hq, D]`` over the paged cache, into ``out[T, Hq, D]``.

    Sequence s owns the query rows ``query_start_loc[s] : query_start_loc[s + 1]``, which are the last of its
    ``seq_lens[s]`` tokens, and the cache blocks ``block_tables[s]``. Query heads share KV heads in groups.
    The logit of query position p and key position k is cap * tanh(query . key * scale / cap) + slope *
    (k - p); only keys up to p and above p - window, or of the chunk of p, are seen, and ``bidirectional``
    those below p + window, too; a sink is a further logit without a value. With an int8 cache the query is
    rounded as the keys are.
    """
    keys, values = layout.views(cache)
    if layout.cache_dtype is torch.int8:
        keys, values = (
            cached * scales[..., None]
            for cached, scales in zip((keys, values), layout.scales(cache), strict=True)
        )
        q, query_scales = _rounded(query)
        query = q * query_scales[..., None]
    group = query.shape[1] // layout.num_kv_heads
    starts = query_start_loc.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        first, last = starts[sequence], starts[sequence + 1]
        if first == last:
            continue
        num_blocks = -(-length // layout.block_size)
        blocks = block_tables[sequence, :num_blocks].long()

        def tokens(cached: Tensor, blocks: Tensor = blocks, length: int = length) -> Tensor:
            """Gather ``[Hq, length, D]``, each KV head repeated for its group."""
            heads = cached[blocks].transpose(0, 1).flatten(1, 2)[:, :length]
            return heads.float().repeat_interleave(group, dim=0)

        scores = query[first:last].float().transpose(0, 1) @ tokens(keys).transpose(1, 2) * scale
        if logit_soft_cap is not None:
            scores = logit_soft_cap * torch.tanh(scores / logit_soft_cap)
        distance = torch.arange(length) - torch.arange(length - (last - first), length)[:, None]
        if alibi_slopes is not None:
            scores = scores + alibi_slopes[:, None, None] * distance
        unseen = _unseen(distance, sliding_window, chunk_size, bidirectional)
        scores = scores.masked_fill(unseen, float("-inf"))
        if sinks is not None:
            scores = torch.cat((scores, sinks[:, None, None].expand(-1, last - first, 1)), -1)
        weights = scores.softmax(-1)[..., :length]
        out[first:last] = (weights @ tokens(values)).transpose(0, 1).to(out.dtype)


def varlen_attention(  # noqa: PLR0917 - the kernels take what they take
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_start_loc: Tensor,
    scale: float,
    *,
    sliding_window: int | None = None,
    bidirectional: bool = False,
    logit_soft_cap: float | None = None,
) -> None:
    """Attention of ``query[T, Hq, D]`` to ``key`` and ``value`` ``[T, Hkv, D]`` of the same sequence."""
    group = query.shape[1] // key.shape[1]
    starts = query_start_loc.tolist()
    for first, last in itertools.pairwise(starts):
        q = query[first:last].float().transpose(0, 1)
        k, v = (x[first:last].float().transpose(0, 1).repeat_interleave(group, 0) for x in (key, value))
        scores = q @ k.transpose(1, 2) * scale
        if logit_soft_cap is not None:
            scores = logit_soft_cap * torch.tanh(scores / logit_soft_cap)
        places = torch.arange(last - first)
        unseen = _unseen(places - places[:, None], sliding_window, None, bidirectional)
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        out[first:last] = (weights @ v).transpose(0, 1).to(out.dtype)


def _unseen(distance: Tensor, window: int | None, chunk: int | None, bidirectional: bool) -> Tensor:
    """Which keys the queries don't see, by the ``distance`` k - p, all of shape ``[queries, length]``."""
    key = torch.arange(distance.shape[1])
    query = key - distance
    unseen = torch.zeros_like(distance, dtype=torch.bool) if bidirectional else key > query
    if window is not None:
        unseen |= distance.abs() >= window
    return unseen if chunk is None else unseen | (key < query // chunk * chunk)


def report() -> dict[str, dict[str, str]]:
    """What `armllm.kernels.report` says, were these functions the kernels."""
    return {op: {"target": "reference", "why": "plain torch"} for op in OPS}


def targets() -> tuple[str, ...]:
    """The one target that this module is."""
    return ("reference",)


def weight_layouts() -> dict[str, str]:
    """The one layout, which is no layout."""
    return {"reference": "reference"}


def weight_target(bits: int) -> str:
    """The one target, for weights of 4 or 8 bits."""
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits}, expected 4 or 8")
    return "reference"


def get_num_threads() -> int:
    """Torch's number."""
    return torch.get_num_threads()


def set_num_threads(threads: int) -> None:
    """Set torch's number; 0 leaves it."""
    if threads < 0:
        raise ValueError(f"threads is {threads}, expected 0 (the default) or more")
    if threads:
        torch.set_num_threads(threads)


def use_own_threads(own: bool = True) -> None:
    """Nothing: all threads are torch's."""


def thread_backend() -> str:
    """Whose threads work here."""
    return "torch"
