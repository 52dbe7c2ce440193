"""Attention over the paged KV cache."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm import kernels
from armllm.layers.ranks import Cut, current_ranks, own_range

if TYPE_CHECKING:
    from armllm.kernels import KVCacheLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMetadata:
    """Where the tokens of one step belong; T tokens of S sequences, built once and read by every layer.

    slot_mapping int64 [T]: the cache slot of each token's key and value. block_tables int32 [S, most blocks].
    query_start_loc int32 [S + 1]: each sequence's rows among the T. seq_lens int32 [S]: tokens in the cache
    after the step. state_slots int64 [S]: where recurrent layers have each sequence's state; None: there are
    no such layers. token_types int64 [T]: the segment of each token, for encoders of pairs; None: all 0.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    state_slots: Tensor | None = None
    token_types: Tensor | None = None

    @functools.cached_property
    def new_sequences(self) -> tuple[AttentionMetadata, Tensor] | None:
        """Of the sequences at the step's end without tokens before it: what is before them, and their starts.

        The starts are int32 ``[new sequences + 1]`` and begin at 0. What is before has the four tensors that
        attention reads. None: there are no such sequences, or all sequences have a single token.
        """
        starts, count = self.query_start_loc, len(self.seq_lens)
        if len(self.slot_mapping) == count:
            return None
        continued = torch.nonzero(starts.diff() < self.seq_lens)
        first = int(continued[-1]) + 1 if len(continued) else 0
        if first == count:
            return None
        row = int(starts[first])
        before = AttentionMetadata(
            slot_mapping=self.slot_mapping[:row],
            block_tables=self.block_tables[:first],
            query_start_loc=starts[: first + 1],
            seq_lens=self.seq_lens[:first],
        )
        return before, starts[first:] - row


class Attention:
    """One layer's attention and its KV cache, which the model runner binds before the first step.

    sliding_window: how many tokens a token sees, itself included; None is all. logit_soft_cap: scores x
    become c * tanh(x / c) (Gemma 2). Of several ranks each computes a range of the heads. It is given those
    of all ranks, or its own ones only with ``own_inputs``. counts: heads of query, key and value that it is
    given.
    """

    layout: KVCacheLayout
    cache: Tensor

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None = None,
        logit_soft_cap: float | None = None,
        own_inputs: bool = False,
    ) -> None:
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scale = scale
        self.options: dict[str, Any] = {"sliding_window": sliding_window, "logit_soft_cap": logit_soft_cap}
        ranks = current_ranks()
        rank, size = (0, 1) if ranks is None else (ranks.rank, ranks.size)
        self._own, self._own_kv = own_range(num_heads, rank, size), own_range(num_kv_heads, rank, size)
        self._gather = None if ranks is None else Cut(ranks).gatherer([num_heads * head_dim])
        self._takes_own = ranks is None or own_inputs
        heads, kv_heads = (len(self._own), len(self._own_kv)) if own_inputs else (num_heads, num_kv_heads)
        self.counts = (heads, kv_heads, kv_heads)

    def use_sinks(self, sinks: Tensor) -> None:
        """``sinks[num_heads]``: one more score per head, without a value (arXiv:2309.17453)."""
        self.options["sinks"] = sinks[self._own.start : self._own.stop].float()

    def use_slopes(self, slopes: Tensor) -> None:
        """``slopes[num_heads]``, by which scores fall with the distance of a key (ALiBi)."""
        self.options["alibi_slopes"] = slopes[self._own.start : self._own.stop].float()

    def use_chunks(self, size: int) -> None:
        """A token sees those of its chunk of so many positions only, up to itself."""
        self.options["chunk_size"] = size

    def cache_layout(
        self, dtype: torch.dtype, block_size: int, cache_dtype: torch.dtype | None = None
    ) -> KVCacheLayout:
        """How the attention kernel of this CPU wants the cache, which by default holds ``dtype``."""
        return kernels.kv_cache_layout(
            dtype,
            num_kv_heads=len(self._own_kv),
            head_dim=self.head_dim,
            block_size=block_size,
            cache_dtype=cache_dtype,
        )

    def bind(self, layout: KVCacheLayout, cache: Tensor) -> None:
        """Use this cache from now on."""
        self.layout = layout
        self.cache = cache

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Store keys and values, and attend by ``query``: all are ``[T, heads, head_dim]``."""
        self.store(key, value, metadata)
        return self.attend(query, metadata)

    def store(self, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> None:
        """Put keys and values ``[T, heads, head_dim]`` into the cache."""
        if not self._takes_own:
            key, value = (x[:, self._own_kv.start : self._own_kv.stop] for x in (key, value))
        kernels.write_kv_cache(key, value, self.cache, self.layout, metadata.slot_mapping)

    def attend(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        """By ``query[T, heads, head_dim]`` to keys and values that are in the cache."""
        if not self._takes_own:
            query = query[:, self._own.start : self._own.stop]
        out = torch.empty(query.shape, dtype=query.dtype)
        kernels.paged_attention(
            out,
            query,
            self.cache,
            self.layout,
            metadata.block_tables,
            metadata.query_start_loc,
            metadata.seq_lens,
            self.scale,
            **self.options,
        )
        if self._gather is None:
            return out
        return self._gather(out.flatten(1)).view(len(out), self.num_heads, self.head_dim)
