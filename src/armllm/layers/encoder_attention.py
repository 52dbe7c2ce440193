"""Attention within whole sequences, every token to every other one, without a KV cache."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

QUERY_BLOCK = 256  # rows of a window's mask


class EncoderAttention:
    """Scaled dot-product attention over packed sequences (Vaswani et al. 2017).

    ``reach``: a token sees this many tokens on either side, and itself; None: all of its sequence. ``bias``:
    fp32 ``[num_heads, L, L]`` that is added to the scores of a sequence of L tokens; None: nothing is.
    """

    def __init__(
        self,
        *,
        num_heads: int,
        head_dim: int,
        reach: int | None = None,
        bias: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.reach = reach
        self.bias = bias

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, query_start_loc: Tensor) -> Tensor:
        """Attend by ``query[T, num_heads, head_dim]`` to ``key`` and ``value`` of the same shape.

        ``query_start_loc`` int32 ``[S + 1]``: each sequence's rows. Sequences of one length are computed
        together, so nothing is padded.
        """
        starts = query_start_loc.tolist()
        by_length = defaultdict(list)
        for start, end in itertools.pairwise(starts):
            by_length[end - start].append(start)
        if len(by_length) == 1:
            return self._attend(query, key, value, next(iter(by_length)))
        out = torch.empty_like(query)
        for length, firsts in by_length.items():
            if len(firsts) == 1:
                rows = slice(firsts[0], firsts[0] + length)
                out[rows] = self._attend(query[rows], key[rows], value[rows], length)
            else:
                index = (torch.tensor(firsts)[:, None] + torch.arange(length)).flatten()
                out[index] = self._attend(query[index], key[index], value[index], length)
        return out

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
        shape = (-1, length, self.num_heads, self.head_dim)
        q, k, v = (x.view(shape).transpose(1, 2) for x in (query, key, value))
        if self.bias is not None:
            attended = scaled_dot_product_attention(q, k, v, attn_mask=self.bias(length).to(q.dtype))
        elif self.reach is None or length <= self.reach + 1:
            attended = scaled_dot_product_attention(q, k, v)
        else:
            attended = torch.cat(
                [self._attend_block(q, k, v, first, self.reach) for first in range(0, length, QUERY_BLOCK)],
                dim=2,
            )
        return attended.transpose(1, 2).reshape(query.shape)

    @staticmethod
    def _attend_block(q: Tensor, k: Tensor, v: Tensor, first: int, reach: int) -> Tensor:
        """The queries from ``first`` on, with no more keys than they reach."""
        end = min(first + QUERY_BLOCK, q.shape[2])
        low, high = max(0, first - reach), min(q.shape[2], end + reach)
        seen = (torch.arange(first, end)[:, None] - torch.arange(low, high)).abs() <= reach
        return scaled_dot_product_attention(
            q[:, :, first:end], k[:, :, low:high], v[:, :, low:high], attn_mask=seen
        )
