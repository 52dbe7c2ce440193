"""Layers that keep a state per sequence instead of keys and values per token."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, NamedTuple

import torch

from armllm.kernels.recurrence import MAX_CONV_WIDTH, MAX_STATE_KEYS, SequenceStates

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.attention import AttentionMetadata


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


def read_width(reader: ConfigReader, name: str, default: int) -> int:
    """Of a convolution, in tokens; refused where the kernels do not have it."""
    taps = reader.integer(name, default)
    if not 2 <= taps <= MAX_CONV_WIDTH:
        raise reader.error(f"{name} {taps} is not supported, only 2 to {MAX_CONV_WIDTH}")
    return taps


def check_recurrence(reader: ConfigReader, width: tuple[str, int], keys: tuple[str, int]) -> None:
    """Refuse sizes that the kernels do not have: keys of config.json with their defaults."""
    read_width(reader, *width)
    size = reader.integer(*keys)
    if size > MAX_STATE_KEYS:
        raise reader.error(f"{keys[0]} {size} is not supported, only up to {MAX_STATE_KEYS}")


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

    def sequences(self, metadata: AttentionMetadata) -> list[SequenceStates]:
        """What a step's sequences have in each of the states."""
        if metadata.state_slots is None:
            raise ValueError("a layer with a state needs the slots of the sequences")
        return [SequenceStates(each, metadata.state_slots, metadata.query_start_loc) for each in self.states]

    def copy_state(self, source: int | None, target: int) -> None:
        """Fill a slot with another one's state, or with that before the first token."""
        for state in self.states:
            if source is None:
                state[target].zero_()
            else:
                state[target].copy_(state[source])
