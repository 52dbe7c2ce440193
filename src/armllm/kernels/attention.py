"""The paged KV cache and the attention that reads it."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from armllm.kernels._extension import aligned_bytes, extension

if TYPE_CHECKING:
    import torch
    from torch import Tensor


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
        """The same as the extension takes it."""
        return (
            str(self.dtype),
            str(self.cache_dtype),
            self.num_kv_heads,
            self.head_dim,
            self.block_size,
            self.block_bytes,
            self.head_stride_bytes,
            self.value_offset_bytes,
            self.target,
        )


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
    cache_dtype = cache_dtype or dtype
    block_bytes, head_stride_bytes, value_offset_bytes, target = extension.kv_cache_layout(
        str(dtype), str(cache_dtype), num_kv_heads, head_dim, block_size
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
    return aligned_bytes(num_blocks * layout.block_bytes).view(num_blocks, layout.block_bytes)


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
    extension.write_kv_cache(key, value, cache, layout.description, slot_mapping)


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
    extension.paged_attention(
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
    )
