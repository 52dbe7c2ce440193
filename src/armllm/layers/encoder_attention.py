"""Attention within whole sequences, every token to every other one, without a lasting KV cache."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from armllm import kernels

BLOCK_SIZE = 16  # the smallest: short sequences leave little of a block empty


class EncoderAttention:
    """Scaled dot-product attention over packed sequences (Vaswani et al. 2017).

    ``reach``: a token sees this many tokens on either side, and itself; None: all of its sequence.
    """

    def __init__(self, *, num_heads: int, head_dim: int, reach: int | None = None) -> None:
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.window = None if reach is None else reach + 1
        self.zeros = -head_dim % 8  # behind each head, which a kernel takes in eights

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, query_start_loc: Tensor) -> Tensor:
        """Attend by ``query[T, num_heads, head_dim]`` to ``key`` and ``value`` of the same shape.

        ``query_start_loc`` int32 ``[S + 1]``: each sequence's rows. Nothing is padded.
        """
        if self.zeros:
            query, key, value = (pad(x, (0, self.zeros)) for x in (query, key, value))
        layout = kernels.kv_cache_layout(
            query.dtype, num_kv_heads=self.num_heads, head_dim=query.shape[2], block_size=BLOCK_SIZE
        )
        _scratch.describe(query_start_loc)
        cache = _scratch.cache(layout)
        kernels.write_kv_cache(key, value, cache, layout, _scratch.slots)
        out = torch.empty(query.shape, dtype=query.dtype)
        kernels.paged_attention(
            out,
            query,
            cache,
            layout,
            _scratch.tables,
            _scratch.starts,
            _scratch.lens,
            self.head_dim**-0.5,
            sliding_window=self.window,
            bidirectional=True,
        )
        return out[..., : self.head_dim]


class _Scratch(threading.local):
    """A cache for the keys and values of one layer, and where the tokens of a step lie in it.

    Each layer fills it anew. starts, lens, tables, slots: as `kernels.paged_attention` takes them.
    """

    def __init__(self) -> None:
        self.starts = self.lens = self.tables = self.slots = torch.empty(0, dtype=torch.int32)
        self.num_blocks = 0
        self._given: Tensor | None = None
        self._cache = torch.empty(0, 0, dtype=torch.uint8)
        self._layout: kernels.KVCacheLayout | None = None

    def describe(self, query_start_loc: Tensor) -> None:
        """Give each sequence blocks of its own; nothing changes where the tensor is that of the last call."""
        if self._given is query_start_loc:
            return
        self._given = query_start_loc
        starts = query_start_loc.numpy().astype(np.int32)
        lens = np.diff(starts)
        counts = -(-lens // BLOCK_SIZE)
        ends = counts.cumsum()
        firsts, self.num_blocks = ends - counts, int(ends[-1])
        tables = firsts[:, None] + np.arange(counts.max())
        slots = np.arange(starts[-1]) + np.repeat(firsts * BLOCK_SIZE - starts[:-1], lens)
        self.starts, self.lens = torch.from_numpy(starts), torch.from_numpy(lens)
        self.tables, self.slots = torch.from_numpy(tables.astype(np.int32)), torch.from_numpy(slots)

    def cache(self, layout: kernels.KVCacheLayout) -> Tensor:
        """A cache that is large enough for the step."""
        if layout != self._layout or len(self._cache) < self.num_blocks:
            self._cache, self._layout = kernels.allocate_kv_cache(layout, self.num_blocks), layout
        return self._cache


_scratch = _Scratch()
