"""Attention within whole sequences, without a lasting KV cache."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from armllm import kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from armllm.layers.attention import AttentionMetadata

BLOCK_SIZE = 16  # the smallest: short sequences leave little of a block empty


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
        layout = _layout(query.dtype, self.num_kv_heads, query.shape[2])
        scratch = _current.scratch
        scratch.describe(query_start_loc)
        cache = scratch.cache(layout)
        kernels.write_kv_cache(key, value, cache, layout, scratch.slots)
        out = torch.empty(query.shape, dtype=query.dtype)
        kernels.paged_attention(
            out,
            query,
            cache,
            layout,
            scratch.tables,
            scratch.starts,
            scratch.lens,
            self.scale,
            sliding_window=self.window,
            bidirectional=self.bidirectional,
            logit_soft_cap=self.logit_soft_cap,
        )
        if self.zeros:
            out = out[..., : self.head_dim].contiguous()  # of one element, even flatten(1) is a view
        return out


@functools.cache
def _layout(dtype: torch.dtype, num_kv_heads: int, head_dim: int) -> kernels.KVCacheLayout:
    return kernels.kv_cache_layout(dtype, num_kv_heads=num_kv_heads, head_dim=head_dim, block_size=BLOCK_SIZE)


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


class Scratch:
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
        parts = _blocks(query_start_loc.numpy())
        self.starts, self.lens, self.tables, self.slots = map(torch.from_numpy, parts)
        self.num_blocks = int(self.tables[-1, 0]) + self.tables.shape[1]

    def cache(self, layout: kernels.KVCacheLayout) -> Tensor:
        """A cache that is large enough for the step."""
        if layout is not self._layout or self._cache.shape[0] < self.num_blocks:
            self._cache, self._layout = kernels.allocate_kv_cache(layout, self.num_blocks), layout
        return self._cache


class FixedScratch(Scratch):
    """The same for steps of so many ``sequences`` and ``tokens``, in places that stay.

    ``caches``: by layout, for all such scratches; each holds steps of ``most`` tokens.
    """

    def __init__(
        self, sequences: int, tokens: int, most: int, caches: dict[kernels.KVCacheLayout, Tensor]
    ) -> None:
        super().__init__()
        self.starts = torch.zeros(sequences + 1, dtype=torch.int32)
        self.lens = torch.zeros(sequences, dtype=torch.int32)
        self.tables = torch.zeros(sequences, -(-tokens // BLOCK_SIZE), dtype=torch.int32)
        self.slots = torch.zeros(tokens, dtype=torch.int64)
        self._most = most
        self._caches = caches

    def describe(self, query_start_loc: Tensor) -> None:
        """Nothing: `fill` has done it."""

    def fill(self, query_start_loc: Tensor) -> None:
        """Describe the next step; nothing changes where its sequences have the lengths of the last one."""
        if torch.equal(self.starts, query_start_loc):
            return
        starts, lens, tables, slots = _blocks(query_start_loc.numpy())
        self.starts.numpy()[:] = starts
        self.lens.numpy()[:] = lens
        self.tables.numpy()[:, : tables.shape[1]] = tables
        self.slots.numpy()[:] = slots

    def cache(self, layout: kernels.KVCacheLayout) -> Tensor:
        """One that stays."""
        if layout not in self._caches:
            # each token may have a block, and the table of the last sequence be wider than it needs
            self._caches[layout] = kernels.allocate_kv_cache(layout, 2 * self._most)
        return self._caches[layout]


def _blocks(query_start_loc: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.integer], ...]:
    """Starts int32 ``[S + 1]``, lens int32 ``[S]``, tables int32 ``[S, blocks]``, slots int64 ``[T]``."""
    starts = query_start_loc.astype(np.int32)
    lens = np.diff(starts)
    counts = -(-lens // BLOCK_SIZE)
    firsts = counts.cumsum() - counts
    tables = firsts[:, None] + np.arange(counts.max())
    slots = np.arange(starts[-1]) + np.repeat(firsts * BLOCK_SIZE - starts[:-1], lens)
    return starts, lens, tables.astype(np.int32), slots


class _Current(threading.local):
    """The scratch of this thread's steps."""

    def __init__(self) -> None:
        self.scratch = Scratch()


_current = _Current()


@contextlib.contextmanager
def using(scratch: Scratch) -> Iterator[None]:
    """Let steps within lie in this scratch."""
    before, _current.scratch = _current.scratch, scratch
    try:
        yield
    finally:
        _current.scratch = before
