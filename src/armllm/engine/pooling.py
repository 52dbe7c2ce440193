"""Embeddings and classes: from the hidden states of a prompt's tokens to one vector."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import torch

from armllm.engine.sentence_modules import Projection, embedding_size, read_modules
from armllm.errors import RequestError
from armllm.sampling_params import NO_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.config import Classes, ModelConfig
    from armllm.models import Model
    from armllm.sampling_params import PoolingParams

CLASS_TASKS = ("classify", "score")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling:
    """What a model makes of its states.

    modes: how they become one vector; of several, the vectors side by side. projections: what this vector
    passes through. embedding_size: numbers of the last one's result. classes: of the classification head,
    which ``classify`` computes, ``[1, hidden_size]`` in ``dtype`` to ``[1, num_labels]``.
    """

    modes: tuple[str, ...]
    projections: tuple[Projection, ...]
    embedding_size: int
    dtype: torch.dtype
    classes: Classes | None
    classify: Callable[[Tensor], Tensor] | None

    @classmethod
    def of(cls, folder: Path, config: ModelConfig, model: Model | None, dtype: torch.dtype) -> Pooling:
        """As the checkpoint's authors pool, by the files of sentence-transformers.

        Without these it is the mean for encoders, as in sentence-transformers, and else the last token's
        state, as in vLLM. CheckpointError names what is not supported.
        """
        if config.classes is not None:
            classify: Any = model
            return cls(
                modes=(config.classes.pooling,),
                projections=(),
                embedding_size=config.hidden_size,
                dtype=dtype,
                classes=config.classes,
                classify=classify.classify,
            )
        modes, projections = read_modules(folder, config.hidden_size)
        modes = modes or (("mean",) if config.is_encoder else ("last",))
        return cls(
            modes=modes,
            projections=projections,
            embedding_size=embedding_size(config, modes, projections),
            dtype=dtype,
            classes=None,
            classify=None,
        )

    def check(self, params: PoolingParams) -> None:
        """RequestError names what this model can't do."""
        if self.classes is None:
            if params.task in CLASS_TASKS:
                raise RequestError(f"task {params.task!r}: {NO_CLASSES}")
        elif params.task not in CLASS_TASKS:
            raise RequestError(
                "this model has a classification head and makes no embeddings: use classify or score"
            )
        elif params.pooling is not None or params.dimensions is not None:
            raise RequestError("pooling and dimensions are for embeddings; this model has classes")
        if params.task == "score" and self.classes is not None and len(self.classes.labels) != 1:
            raise RequestError(
                f"a score needs a model with one class; this one has {len(self.classes.labels)}: use classify"
            )
        if params.pooling is not None and self.projections:
            raise RequestError("pooling can't be chosen: this checkpoint projects what it pools")
        if params.dimensions is not None and params.dimensions > self.embedding_size:
            raise RequestError(f"dimensions {params.dimensions} is above the model's {self.embedding_size}")


class Pooler:
    """One vector out of the final hidden states of a prompt's tokens, which come chunk by chunk.

    After a preemption they come from the first one again.
    """

    def __init__(self, params: PoolingParams, pooling: Pooling) -> None:
        self._params = params
        self._pooling = pooling
        self._modes = pooling.modes if params.pooling is None else (params.pooling,)
        self._states: dict[str, Tensor] = {}
        self._count = 0

    @property
    def needs_every_token(self) -> bool:
        """The last token's state is there anyway."""
        return self._modes != ("last",)

    def read(self, first: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Take ``hidden[rows, hidden_size]``, the states of the tokens from position ``first`` on."""
        del logits
        for mode in self._modes:
            before = self._states.get(mode) if first else None
            self._states[mode] = _gather_states(mode, before, first, hidden)
        self._count = first + len(hidden)

    @torch.inference_mode()
    def values(self) -> list[float]:
        """The embedding, of ``dimensions`` or all numbers; or the probability of each class."""
        vector = torch.cat([_finish(mode, self._states[mode], self._count) for mode in self._modes])
        if self._pooling.classify is not None and self._pooling.classes is not None:
            vector = _activate(
                self._pooling.classify(vector[None].to(self._pooling.dtype))[0],
                self._pooling.classes.activation if self._params.normalize else "none",
            )
        else:
            for projection in self._pooling.projections:
                vector = projection(vector)
            vector = vector[: self._params.dimensions]
            if self._params.normalize:
                vector = vector / vector.norm().clamp_min(1e-12)
        values: list[float] = vector.tolist()
        return values


def _gather_states(mode: str, before: Tensor | None, first: int, hidden: Tensor) -> Tensor:
    """What ``mode`` keeps of the states so far, fp32 ``[hidden_size]``; ``before``: of earlier chunks."""
    if mode == "cls":
        return hidden[0].float() if before is None else before
    if mode == "last":
        return hidden[-1].float()
    if mode == "max":
        most = hidden.amax(0).float()
        return most if before is None else torch.maximum(before, most)
    if mode == "weightedmean":
        weights = torch.arange(first + 1, first + len(hidden) + 1, dtype=torch.float32)
        total = weights @ hidden.float()
    else:
        total = hidden.sum(0, dtype=torch.float32)
    return total if before is None else before + total


def _finish(mode: str, state: Tensor, count: int) -> Tensor:
    """The pooled vector of ``count`` tokens."""
    if mode == "mean":
        return state / count
    if mode == "mean_sqrt_len":
        return state / math.sqrt(count)
    if mode == "weightedmean":  # weights are 1 to count
        return state / (count * (count + 1) / 2)
    return state


def _activate(scores: Tensor, activation: str) -> Tensor:
    """Probabilities of the classes, or the scores themselves."""
    if activation == "none":
        return scores
    return torch.sigmoid(scores) if activation == "sigmoid" else scores.softmax(-1)
