"""Embeddings: from the hidden states of a prompt's tokens to one vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.json_file import read_object
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from armllm.sampling_params import PoolingParams

# where sentence-transformers keeps what its pooling does, and its names for what is here
CONFIG = "1_Pooling/config.json"
MODES = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
}


def read_default_pooling(folder: Path) -> str:
    """How the checkpoint's authors pool, if they say so; else the last token's state, as vLLM does."""
    path = folder / CONFIG
    if not path.is_file():
        return "last"
    modes = read_object(path).items()
    active = [mode for mode, on in modes if mode.startswith("pooling_mode_") and on is True]
    if len(active) != 1 or active[0] not in MODES:
        raise CheckpointError(
            f"{path} asks for {' and '.join(active) or 'no pooling'}; one of {', '.join(MODES)} is supported"
        )
    return MODES[active[0]]


class Pooler:
    """One embedding out of the final hidden states of a prompt's tokens, which come chunk by chunk.

    After a preemption they come from the first one again.
    """

    def __init__(self, params: PoolingParams, pooling: str) -> None:
        self._params = params
        self._pooling = pooling
        self._state: Tensor | None = None
        self._count = 0

    @property
    def needs_every_token(self) -> bool:
        """The last token's state is there anyway."""
        return self._pooling != "last"

    def read(self, first: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Take ``hidden[rows, hidden_size]``, the states of the tokens from position ``first`` on."""
        del logits
        if self._pooling == "mean":
            total = hidden.sum(0, dtype=torch.float32)
            if first:
                assert self._state is not None  # noqa: S101 - chunks come in order
                total += self._state
            self._state, self._count = total, first + len(hidden)
        elif self._pooling == "last" or first == 0:
            self._state, self._count = hidden[-1 if self._pooling == "last" else 0].float(), 1

    def embedding(self) -> list[float]:
        """The vector of ``dimensions`` or all of the model's hidden size."""
        assert self._state is not None  # noqa: S101 - asked for after the last chunk
        vector = (self._state / self._count)[: self._params.dimensions]
        if self._params.normalize:
            vector /= vector.norm().clamp_min(1e-12)
        values: list[float] = vector.tolist()
        return values
