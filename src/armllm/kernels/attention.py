"""The paged KV cache, the attention that reads it, and attention without one."""

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
    """The order of a KV cache that the attention kernel of this CPU needs. `kv_cache_layout` returns it.

    A block holds ``block_size`` tokens of all KV heads. The heads are ``head_stride_bytes`` apart. Each head
    has its keys first, and its values ``value_offset_bytes`` after them. Only ``target`` knows the order
    inside keys and values. ``dtype`` is the dtype of keys, values and queries. ``cache_dtype`` is the same or
    int8. With int8 every head vector of a token has a float32 scale, after the values.
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
        """The fields as the extension takes them."""
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
    """Return the layout of a KV cache for keys and values of ``dtype`` (float32, float16 or bfloat16).

    - ``cache_dtype``: the dtype in the cache; default: ``dtype``. With torch.int8 every head vector is
      rounded to scale * q with scale = max|x| / 127.
    - ``head_dim``: a multiple of 8, at most 1024.
    - ``block_size``: 16, 32, 64 or 128 tokens.

    Raises ValueError if there is no such layout.
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
    """Return a cache without initial values: uint8 [num_blocks, block_bytes], aligned to 64 bytes.

    Raises ValueError if ``num_blocks`` is negative.
    """
    if num_blocks < 0:
        raise ValueError(f"num_blocks is {num_blocks}, expected 0 or more")
    return aligned_bytes(num_blocks * layout.block_bytes).view(num_blocks, layout.block_bytes)


def write_kv_cache(
    key: Tensor, value: Tensor, cache: Tensor, layout: KVCacheLayout, slot_mapping: Tensor
) -> None:
    """Store the keys and values of tokens in their slots.

    - ``key``, ``value``: [tokens, num_kv_heads, head_dim] of the layout's dtype.
    - ``cache``: a tensor from `allocate_kv_cache`.
    - ``slot_mapping``: int64 [tokens], block * block_size + offset. A negative number skips the token. No
      slot may occur twice.

    If a head vector of an int8 cache has an infinity or a NaN, everything that attends to it becomes NaN.
    Raises ValueError that names the wrong argument; then nothing is written.
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
    chunk_size: int | None = None,
    bidirectional: bool = False,
    logit_soft_cap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Compute attention of each sequence's last tokens over cached keys and values, up to their own.

    One call may mix prefill chunks and decodes.

    - ``out``, ``query``: [tokens, query heads, head_dim] of the layout's dtype. The number of query heads is
      a multiple of the number of KV heads.
    - ``query_start_loc``: int32 [sequences + 1]. Sequence s has the query tokens [query_start_loc[s],
      query_start_loc[s + 1]); it may have none.
    - ``seq_lens``: int32 [sequences], tokens of each sequence, all in the cache. Those of the query are last.
    - ``block_tables``: int32 [sequences, max_blocks], the blocks of each sequence; the rest may be anything.
    - ``scale``: the logit of a query and a key is query . key * scale.
    - ``logit_soft_cap``: c > 0 changes the logit to c * tanh(logit / c).
    - ``alibi_slopes``: float32 [query heads]. Then slope * (k - p) is added for a query at position p and a
      key at position k.
    - ``sliding_window``: w >= 1 limits the keys of position p to p - w + 1 .. p. Entries of the block table
      before the first block in the window may be anything.
    - ``chunk_size``: c >= 1 limits the keys of position p to those of its chunk of c tokens: p // c * c .. p.
      It excludes ``sliding_window``, and the same holds for the block table.
    - ``bidirectional``: later tokens are seen, too: all, or up to p + w - 1. It excludes ``chunk_size``.
    - ``sinks``: float32 [query heads], one more logit per head, which takes its share of the probability and
      gives no value.

    With an int8 cache, the query's head vectors are rounded to int8 as the keys are. Products of integers are
    exact. A weight times its value's scale is rounded to 2^-14 of the largest among 64 keys.

    Raises ValueError that names the wrong argument or index; then nothing is written.
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
        chunk_size,
        bidirectional,
        logit_soft_cap,
        alibi_slopes,
        sinks,
    )


def varlen_attention(  # noqa: PLR0917 - the order is the field's
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
    """Compute attention within whole sequences, packed without padding; no cache is needed.

    - ``out``, ``query``: [tokens, query heads, head_dim]. head_dim is a multiple of 8, at most 1024.
    - ``key``, ``value``: [tokens, KV heads, head_dim]. The number of query heads is a multiple of theirs.
    - ``query_start_loc``: int32 [sequences + 1]. Sequence s has the tokens [query_start_loc[s],
      query_start_loc[s + 1]).

    All have one dtype: float32, float16 or bfloat16. The others, and the bits of the result, are those of
    `paged_attention` with a plain cache in blocks of 16 tokens. Raises ValueError that names the wrong
    argument; then nothing is written.
    """
    extension.varlen_attention(
        out,
        query,
        key,
        value,
        query_start_loc,
        scale,
        sliding_window,
        bidirectional,
        logit_soft_cap,
    )
