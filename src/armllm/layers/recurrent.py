"""Layers that keep a state per sequence instead of keys and values per token."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.layers.attention import AttentionMetadata


class StateShape(NamedTuple):
    """One tensor of the state of a sequence in a layer."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """What it takes for each sequence."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class RecurrentLayer:
    """A layer whose state the model runner binds before the first step.

    ``states`` have a row per slot: sequences own slots, and the engine clears or copies a slot before its
    sequence's first step.
    """

    states: list[Tensor]

    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """The parts of a sequence's state where the model computes in ``dtype``."""
        raise NotImplementedError

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
