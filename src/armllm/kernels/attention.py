"""The paged KV cache and the attention that reads it."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import torch

from armllm.kernels import _check
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

    from armllm._kernels import KvCacheType, Storage

ALIGNMENT = 64  # bytes: a cache line
NO_WINDOW = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class KVCacheLayout:
    """How the attention kernel of this CPU wants its cache; ask with ``kv_cache_layout``, assume nothing.

    A block holds ``block_size`` tokens of all KV heads: per head, ``head_stride_bytes`` apart, first the
    keys and ``value_offset_bytes`` further on the values. The order inside keys and values is the business
    of ``target``. ``dtype`` is that of keys, values and queries; ``cache_dtype`` is the same, or int8: then
    every token's head vector has a float scale, behind the values.
    """

    dtype: torch.dtype
    cache_dtype: torch.dtype
    num_kv_heads: int
    head_dim: int
    block_size: int
    block_bytes: int
    head_stride_bytes: int
    value_offset_bytes: int
    target: str

    @functools.cached_property
    def description(self) -> tuple[int | str, ...]:
        """The same for calls with plain tensors: numbers, then the target. Raises ValueError."""
        return (
            _check.storage("layout", self.dtype).value,
            _cache_type(self.dtype, self.cache_dtype).value,
            self.num_kv_heads,
            self.head_dim,
            self.block_size,
            self.block_bytes,
            self.head_stride_bytes,
            self.value_offset_bytes,
            self.target,
        )


def _cache_type(dtype: torch.dtype, cache_dtype: torch.dtype) -> KvCacheType:
    if cache_dtype not in (dtype, torch.int8):
        raise ValueError(f"cache_dtype is {cache_dtype}; keys and values of {dtype} are kept so or as int8")
    return extension.KvCacheType.plain if cache_dtype is dtype else extension.KvCacheType.int8


def kv_cache_layout(
    dtype: torch.dtype,
    *,
    num_kv_heads: int,
    head_dim: int,
    block_size: int,
    cache_dtype: torch.dtype | None = None,
) -> KVCacheLayout:
    """Ask for the layout of a KV cache for keys and values of ``dtype`` (float32, float16 or bfloat16).

    ``cache_dtype`` is what they are kept in, ``dtype`` by default; torch.int8 rounds every head vector to
    scale * q with scale = max|x| / 127. ``head_dim`` is a multiple of 8, at most 1024; ``block_size``
    (tokens) is 16, 32, 64 or 128. Raises ValueError.
    """
    kind = _check.storage("dtype", dtype)
    cache_dtype = cache_dtype or dtype
    block_bytes, head_stride_bytes, value_offset_bytes, target = extension.kv_cache_layout(
        kind, _cache_type(dtype, cache_dtype), num_kv_heads, head_dim, block_size
    )
    return KVCacheLayout(
        dtype=dtype,
        cache_dtype=cache_dtype,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        block_bytes=block_bytes,
        head_stride_bytes=head_stride_bytes,
        value_offset_bytes=value_offset_bytes,
        target=target,
    )


def allocate_kv_cache(layout: KVCacheLayout, num_blocks: int) -> Tensor:
    """Return an uninitialised cache: uint8 [num_blocks, block_bytes], its start aligned to 64 bytes.

    Raises ValueError when ``num_blocks`` is negative.
    """
    if num_blocks < 0:
        raise ValueError(f"num_blocks is {num_blocks}, expected 0 or more")
    size = num_blocks * layout.block_bytes
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size].view(num_blocks, layout.block_bytes)


def _check_cache(cache: Tensor, layout: KVCacheLayout) -> None:
    _check.tensor("cache", cache, torch.uint8, ("num_blocks", layout.block_bytes))
    if not cache.is_contiguous():
        raise ValueError(f"cache must be contiguous, its strides are {list(cache.stride())}")
    if cache.data_ptr() % ALIGNMENT != 0:
        raise ValueError(f"cache must start at a multiple of {ALIGNMENT} bytes; use allocate_kv_cache")


def _check_layout(layout: KVCacheLayout, kind: Storage) -> KvCacheType:
    cache_type = _cache_type(layout.dtype, layout.cache_dtype)
    now = extension.kv_cache_layout(kind, cache_type, layout.num_kv_heads, layout.head_dim, layout.block_size)
    if now != (layout.block_bytes, layout.head_stride_bytes, layout.value_offset_bytes, layout.target):
        raise ValueError(f"layout was made for target {layout.target}; this process uses {now[3]}")
    return cache_type


def write_kv_cache(
    key: Tensor, value: Tensor, cache: Tensor, layout: KVCacheLayout, slot_mapping: Tensor
) -> None:
    """Store the keys and values of tokens in their slots.

    ``key`` and ``value`` are [tokens, num_kv_heads, head_dim] of the layout's dtype; ``cache`` comes from
    ``allocate_kv_cache``; ``slot_mapping`` is int64 [tokens]: block * block_size + offset, or negative to
    skip the token. No slot may stand twice. In an int8 cache a head vector with an infinity or a NaN makes a
    NaN of what attends to it. Raises ValueError naming the argument that doesn't fit; nothing
    is written then.
    """
    if extension.plain_write_kv_cache(key, value, cache, layout.description, slot_mapping):
        return
    kind = _check.storage("layout", layout.dtype)
    _check.tensor("key", key, layout.dtype, ("tokens", layout.num_kv_heads, layout.head_dim))
    tokens = key.shape[0]
    _check.tensor("value", value, layout.dtype, key.shape)
    _check.tensor("slot_mapping", slot_mapping, torch.int64, (tokens,))
    cache_type = _check_layout(layout, kind)
    _check_cache(cache, layout)
    extension.write_kv_cache(
        kind,
        cache_type,
        key.data_ptr(),
        value.data_ptr(),
        cache.data_ptr(),
        slot_mapping.data_ptr(),
        tokens,
        layout.num_kv_heads,
        layout.head_dim,
        layout.block_size,
        cache.shape[0],
        key.stride(0),
        key.stride(1),
        value.stride(0),
        value.stride(1),
    )


def _per_head(name: str, value: Tensor | None, query_heads: int) -> int:
    """Return the address of a float32 [query heads], 0 for None."""
    if value is None:
        return 0
    _check.tensor(name, value, torch.float32, (query_heads,))
    return value.data_ptr()


def paged_attention(  # noqa: PLR0917 - the order is the field's
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
    logit_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Causal attention of each sequence's last tokens over its cached keys and values.

    Prefill chunks and decodes may stand side by side. ``out`` and ``query`` are [tokens, query heads,
    head_dim] of the layout's dtype, the query heads a multiple of the KV heads. Sequence s owns the query
    tokens [query_start_loc[s], query_start_loc[s + 1]) (none is fine); they are the last of its
    ``seq_lens[s]`` tokens, all of which have been written to the cache, in the blocks ``block_tables[s]``
    (int32 [sequences, max_blocks]; entries behind the last block needed may hold anything).
    ``query_start_loc`` is int32 [sequences + 1], ``seq_lens`` int32 [sequences].

    The logit of a query at position p and a key at position k is query . key * scale; then
    ``logit_soft_cap`` c > 0 makes it c * tanh(logit / c), and ``alibi_slopes`` (float32 [query heads]) add
    slope * (k - p). The query sees the keys up to its own position, with ``sliding_window`` w >= 1 only
    p - w + 1 .. p (block table entries before the first block seen may then hold anything). ``sinks``
    (float32 [query heads]) are one more logit per head that takes its share of the probability and gives no
    value. Raises ValueError naming the argument that doesn't fit, indices included; nothing is written then.

    With an int8 cache the query's head vectors are rounded to int8 as the keys were, and the products of
    integers are exact. A weight times its value's scale is rounded to 2^-14 of the largest among 64 keys.
    """
    if extension.plain_paged_attention(
        out,
        query,
        cache,
        layout.description,
        block_tables,
        query_start_loc,
        seq_lens,
        scale,
        sliding_window,
        logit_soft_cap,
        alibi_slopes,
        sinks,
    ):
        return
    kind = _check.storage("layout", layout.dtype)
    _check.tensor("query", query, layout.dtype, ("tokens", "query heads", layout.head_dim))
    tokens, query_heads, head_dim = query.shape
    if query_heads == 0 or query_heads % layout.num_kv_heads != 0:
        raise ValueError(
            f"query has {query_heads} heads, expected a multiple of the {layout.num_kv_heads} KV heads"
        )
    _check.tensor("out", out, layout.dtype, (tokens, query_heads, head_dim))
    _check.output("out", out)
    _check.tensor("block_tables", block_tables, torch.int32, ("sequences", "max_blocks"))
    sequences, max_blocks = block_tables.shape
    _check.tensor("query_start_loc", query_start_loc, torch.int32, (sequences + 1,))
    _check.tensor("seq_lens", seq_lens, torch.int32, (sequences,))
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window is {sliding_window}, expected at least 1, or None")
    if logit_soft_cap is not None and not 0 < logit_soft_cap < math.inf:
        raise ValueError(f"logit_soft_cap is {logit_soft_cap}, expected a positive number, or None")
    cache_type = _check_layout(layout, kind)
    _check_cache(cache, layout)
    extension.paged_attention(
        kind,
        cache_type,
        out.data_ptr(),
        query.data_ptr(),
        cache.data_ptr(),
        block_tables.data_ptr(),
        query_start_loc.data_ptr(),
        seq_lens.data_ptr(),
        tokens,
        sequences,
        query_heads,
        layout.num_kv_heads,
        head_dim,
        layout.block_size,
        cache.shape[0],
        max_blocks,
        block_tables.stride(0),
        out.stride(0),
        out.stride(1),
        query.stride(0),
        query.stride(1),
        scale,
        NO_WINDOW if sliding_window is None else min(sliding_window, NO_WINDOW),
        0.0 if logit_soft_cap is None else logit_soft_cap,
        _per_head("alibi_slopes", alibi_slopes, query_heads),
        _per_head("sinks", sinks, query_heads),
    )
