"""One model over several processes, the ranks: the rows of a product that each computes, and the gather.

Every product is cut by its output features, attention by heads. Each rank computes its own part, and a gather
gives all ranks all parts. No sum is cut, so every number has the bits that one process gives it.

Layers ask `current_ranks` while a model is built. Models know nothing of it.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import torch

from armllm.errors import EngineError
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from armllm._kernels import Ranks

# Failure code of a step that rank 0 did not finish; a lower one is the number of a rank that ended, plus 1.
INTERRUPTED = (1 << 16) - 1  # below Ranks.LATE
_current: ContextVar[Ranks | None] = ContextVar("ranks", default=None)


@contextlib.contextmanager
def building_for(ranks: Ranks | None) -> Iterator[None]:
    """Layers that are made within compute their part of the model; None: the whole of it."""
    token = _current.set(ranks)
    try:
        yield
    finally:
        _current.reset(token)


def current_ranks() -> Ranks | None:
    """Those that the model which is being built is for; EngineError if one of them has ended."""
    ranks = _current.get()
    if ranks is not None and ranks.failure:
        raise EngineError("the ranks were stopped")
    return ranks


def own_range(count: int, rank: int, size: int) -> range:
    """Which of ``count`` output features, or heads, a rank of ``size`` ranks computes."""
    return range(count * rank // size, count * (rank + 1) // size)


class Cut(NamedTuple):
    """How a product is cut: each part, or each of its ``blocks`` of the same size, by `own_range`."""

    ranks: Ranks
    blocks: int = 1

    def rows(self, count: int, rank: int | None = None) -> list[range]:
        """The rows of a part of ``count`` rows that a rank computes, by default this one."""
        rank = self.ranks.rank if rank is None else rank
        block = count // self.blocks
        own = own_range(block, rank, self.ranks.size)
        return [range(first + own.start, first + own.stop) for first in range(0, count, block)]

    def num_rows(self, count: int) -> int:
        """How many these are."""
        return sum(map(len, self.rows(count)))

    def take(self, whole: Tensor) -> Tensor:
        """Copy the rows of a part that belong to this rank."""
        return torch.cat([whole[rows.start : rows.stop] for rows in self.rows(len(whole))])

    def gatherer(self, counts: Sequence[int], *, first_only: bool = False) -> Gather:
        """What makes the whole of this rank's columns; ``counts`` are those of the parts, side by side.

        first_only: the whole is for rank 0; that of the others has no values.
        """
        pieces = []
        for rank in range(self.ranks.size):
            own: list[tuple[int, int, int]] = []
            source = target = 0
            for count in counts:
                for rows in self.rows(count, rank):
                    own.append((source, target + rows.start, len(rows)))
                    source += len(rows)
                target += count
            pieces.append(own)
        return Gather(extension.Gatherer(self.ranks, pieces, first_only))


class Gather:
    """``x[T, columns of this rank]`` to ``[T, columns of all]``; all ranks call it at the same point."""

    def __init__(self, gatherer: extension.Gatherer) -> None:
        self.gatherer = gatherer

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], self.gatherer.whole, dtype=x.dtype)
        extension.gather_parts(out, x, self.gatherer)
        return out
