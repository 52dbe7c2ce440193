"""Attention within whole sequences, without a KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from armllm import kernels

if TYPE_CHECKING:
    from armllm.layers.attention import AttentionMetadata


class EncoderAttention:
    """Scaled dot-product attention over packed sequences (Vaswani et al. 2017).

    ``reach``: a token sees this many tokens on either side, and itself; None: all of its sequence.
    ``causal``: it sees none behind it. ``scale``: of the scores, 1 / sqrt(head_dim) by default.
    ``num_kv_heads``: of keys and values, num_heads by default. ``logit_soft_cap``: see `Attention`.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        reach: int | None = None,
        causal: bool = False,
        scale: float | None = None,
        logit_soft_cap: float | None = None,
    ) -> None:
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = head_dim
        self.window = None if reach is None else reach + 1
        self.bidirectional = not causal
        self.scale = head_dim**-0.5 if scale is None else scale
        self.logit_soft_cap = logit_soft_cap
        self.zeros = -head_dim % 8  # behind each head, which a kernel takes in eights

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, query_start_loc: Tensor) -> Tensor:
        """Attend by ``query[T, num_heads, head_dim]`` to ``key`` and ``value``, of num_kv_heads each.

        ``query_start_loc`` int32 ``[S + 1]``: each sequence's rows. Nothing is padded.
        """
        if self.zeros:
            query, key, value = (pad(x, (0, self.zeros)) for x in (query, key, value))
        out = torch.empty(query.shape, dtype=query.dtype)
        kernels.varlen_attention(
            out,
            query,
            key,
            value,
            query_start_loc,
            self.scale,
            sliding_window=self.window,
            bidirectional=self.bidirectional,
            logit_soft_cap=self.logit_soft_cap,
        )
        if self.zeros:
            out = out[..., : self.head_dim].contiguous()  # of one element, even flatten(1) is a view
        return out


class TextAttention:
    """The same in place of a decoder's `Attention`. ``sliding_window``: reach and the token itself."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        sliding_window: int | None,
        own_inputs: bool,
        logit_soft_cap: float | None = None,
    ) -> None:
        del own_inputs  # there are no ranks
        self.head_dim = head_dim
        self.counts = (num_heads, num_kv_heads, num_kv_heads)
        self.attention = EncoderAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=scale,
            reach=None if sliding_window is None else sliding_window - 1,
            logit_soft_cap=logit_soft_cap,
        )

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Attend by ``query``: all are ``[T, heads, head_dim]``."""
        return self.attention(query, key, value, metadata.query_start_loc)
