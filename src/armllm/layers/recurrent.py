"""Layers that keep a state per sequence instead of keys and values per token."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.layers.attention import AttentionMetadata

    # inputs and state(s) to what is found, and the state(s) after that
    Advance = Callable[[list[Tensor], Tensor], tuple[Tensor, Tensor]]

CHUNK = 64


class StateShape(NamedTuple):
    """One tensor of the state of a sequence in a layer."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """What it takes for each sequence."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


def decay_of(logarithm: Tensor) -> Tensor:
    """-exp(x). A model without data keeps x: for one such product torch imports its compiler, in seconds."""
    return logarithm if logarithm.is_meta else logarithm.exp().neg_()


class RecurrentLayer(abc.ABC):
    """A layer whose state the model runner binds before the first step.

    ``states`` have a row per slot: sequences own slots, and the engine clears or copies a slot before its
    sequence's first step.
    """

    states: list[Tensor]

    @abc.abstractmethod
    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """The parts of a sequence's state where the model computes in ``dtype``."""

    def bind_states(self, num_slots: int, dtype: torch.dtype) -> None:
        """Make room for so many sequences."""
        self.states = [
            torch.empty(num_slots, *part.shape, dtype=part.dtype) for part in self.state_shapes(dtype)
        ]

    def copy_state(self, source: int | None, target: int) -> None:
        """Fill a slot with another one's state, or with that before the first token."""
        for state in self.states:
            if source is None:
                state[target].zero_()
            else:
                state[target].copy_(state[source])


def slots_of(metadata: AttentionMetadata) -> Tensor:
    """Each sequence's slot, which a model with such layers always has."""
    if metadata.state_slots is None:
        raise ValueError("a layer with a state needs the slots of the sequences")
    return metadata.state_slots


def scan(  # noqa: PLR0917 - what a rule has, then how it goes on
    out: Tensor,
    parts: list[Tensor],
    states: Tensor,
    slots: Tensor,
    query_start_loc: Tensor,
    rule: tuple[Advance, Advance],
) -> None:
    """Fill ``out[T, heads, size]`` from ``parts``, each ``[T, heads, ...]``; the states of the slots move on.

    rule: of one token for each of S sequences, ``[S, heads, ...]``; and of up to `CHUNK` tokens of one
    sequence, heads first.
    """
    step, chunk = rule
    starts = query_start_loc.tolist()
    singles = [row for row in range(len(slots)) if starts[row + 1] - starts[row] == 1]
    if singles:
        rows = query_start_loc[:-1][singles].long()
        own = slots[singles]
        out[rows], states[own] = step([part[rows] for part in parts], states[own])
    for row, slot in enumerate(slots.tolist()):
        first, last = starts[row], starts[row + 1]
        for begin in range(first, last if last - first > 1 else first, CHUNK):
            piece = slice(begin, min(begin + CHUNK, last))
            found, states[slot] = chunk([part[piece].transpose(0, 1) for part in parts], states[slot])
            out[piece] = found.transpose(0, 1)
