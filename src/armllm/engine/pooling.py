"""Embeddings and classes: from the hidden states of a prompt's tokens to one vector, or one of each."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch

from armllm.engine.sentence_modules import (
    Projection,
    VectorNorm,
    check_texts,
    default_dimensions,
    embedding_size,
    num_scores,
    project,
    read_modules,
    read_score_classes,
    warn_of_prompt,
)
from armllm.errors import RequestError
from armllm.pooling_params import NO_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.config import Classes, ModelConfig
    from armllm.models import Model, TokenModel
    from armllm.pooling_params import PoolingParams

CLASS_TASKS = ("classify", "score", "token_classify")
TOKEN_TASKS = ("token_embed", "token_classify", "embed&token_classify")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pooling:
    """What a model makes of its states.

    modes: how they become one vector; of several, the vectors side by side. projections: what this vector
    passes through. embedding_size: numbers of the last one's result. dimensions: how many of them stay
    unless a request says otherwise; None: all. classes: of the classification head, which ``classify``
    computes, ``[R, hidden_size]`` in ``dtype`` to ``[R, num_labels]``. tokens: a model with heads for tokens.
    """

    modes: tuple[str, ...]
    projections: tuple[Projection | VectorNorm, ...]
    embedding_size: int
    dtype: torch.dtype
    classes: Classes | None
    classify: Callable[[Tensor], Tensor] | None
    tokens: TokenModel | None = None
    dimensions: int | None = None

    @classmethod
    def of(cls, folder: Path, config: ModelConfig, model: Model | None, dtype: torch.dtype) -> Pooling:
        """As the checkpoint's authors pool, by the files of sentence-transformers.

        Without these it is the mean for encoders, as in sentence-transformers, and else the last token's
        state, as in vLLM. CheckpointError names what is not supported.
        """
        warn_of_prompt(folder)
        if config.classes is not None:
            classify: Any = model
            check_texts(folder, has_classes=True)
            return cls(
                modes=(config.classes.pooling,),
                projections=(),
                embedding_size=config.final_size,
                dtype=dtype,
                classes=config.classes,
                classify=classify.classify,
            )
        modes, projections = read_modules(folder, config.final_size)
        check_texts(folder, has_classes=False)
        modes = modes or (("mean",) if config.is_encoder else ("last",))
        if (count := num_scores(projections)) is not None:
            return cls(
                modes=modes,
                projections=(),
                embedding_size=config.final_size,
                dtype=torch.float32,
                classes=read_score_classes(folder, count),
                classify=functools.partial(project, projections),
            )
        tokens: Any = model if getattr(model, "token_heads", None) is not None else None
        return cls(
            modes=modes,
            projections=projections,
            embedding_size=embedding_size(config, modes, projections),
            dtype=dtype,
            classes=None,
            classify=None,
            tokens=tokens,
            dimensions=default_dimensions(folder),
        )

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that requests may name, as vLLM calls them."""
        if self.classes is not None:
            return ("classify", "token_classify")
        weights = () if self.tokens is None else ("token_classify", "embed&token_classify")
        return ("embed", "token_embed", *weights)

    def check(self, params: PoolingParams) -> None:
        """RequestError names what this model can't do."""
        task = params.task
        if self.classes is None:
            if task in CLASS_TASKS and task not in self.tasks:
                raise RequestError(f"task {task!r}: {NO_CLASSES}")
            if task not in (None, *self.tasks):
                raise RequestError(f"task {task!r} needs a model with heads for tokens, such as BGE-M3")
        elif task not in CLASS_TASKS:
            raise RequestError(
                "this model has a classification head and makes no embeddings: use classify or score"
            )
        elif params.pooling is not None or params.dimensions is not None:
            raise RequestError("pooling and dimensions are for embeddings; this model has classes")
        if task == "score" and self.classes is not None and len(self.classes.labels) != 1:
            raise RequestError(
                f"a score needs a model with one class; this one has {len(self.classes.labels)}: use classify"
            )
        self._check_vectors(params)

    def _check_vectors(self, params: PoolingParams) -> None:
        task = params.task
        if params.pooling is not None and task in TOKEN_TASKS:
            raise RequestError(f"pooling makes one vector of all tokens; task {task!r} has one of each")
        if task == "token_embed" and self.projections and len(self.modes) > 1:
            raise RequestError("task 'token_embed': this checkpoint projects several pooled vectors together")
        if params.pooling is not None and self.projections:
            raise RequestError("pooling can't be chosen: this checkpoint projects what it pools")
        if params.dimensions is not None and params.dimensions > self.embedding_size:
            raise RequestError(f"dimensions {params.dimensions} is above the model's {self.embedding_size}")


class Pooler:
    """One vector, or one of each token, out of the final states of a prompt, which come chunk by chunk.

    After a preemption they come from the first one again.
    """

    def __init__(self, params: PoolingParams, pooling: Pooling, token_ids: Sequence[int]) -> None:
        self._params = params
        self._pooling = pooling
        default = None if params.task == "token_embed" else pooling.dimensions
        self._dimensions = params.dimensions or default
        self._ends = token_ids[0], token_ids[-1]
        self._modes = pooling.modes if params.pooling is None else (params.pooling,)
        if params.task in TOKEN_TASKS:
            self._modes = ("all",) if params.task != "embed&token_classify" else ("all", *self._modes)
        self._cut_end(token_ids)
        self.states: dict[str, Tensor] = {}
        self.count = 0

    def _cut_end(self, token_ids: Sequence[int]) -> None:
        """Leave out padding tokens at the end of a text with classes, as transformers does."""
        classes = self._pooling.classes
        self._length = len(token_ids)
        self._ends_in_padding = False
        if classes is None or self._modes != ("last",):
            return
        while self._length and token_ids[self._length - 1] == classes.padding:
            self._length -= 1
        self._length = self._length or 1  # the first one of padding alone
        self._ends_in_padding = self._length < len(token_ids)

    @property
    def needs_every_token(self) -> bool:
        """The last token's state is there anyway."""
        return self._modes != ("last",) or self._ends_in_padding

    def read(self, first: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Take ``hidden[rows, hidden_size]``, the states of the tokens from position ``first`` on."""
        del logits
        for mode in self._modes:
            before = self.states.get(mode) if first else None
            if first < self._length:
                self.states[mode] = _gather_states(mode, before, first, hidden[: self._length - first])
        self.count = first + len(hidden)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Those of one kind can be computed together."""
        return self._params.task, self._params.normalize, self._dimensions, self._modes

    def values(self, alike: Sequence[Pooler]) -> list[Any]:
        """What each of ``alike`` gets; they are of this one's kind."""
        task = self._params.task
        if task == "token_embed":
            return [one.token_vectors().tolist() for one in alike]
        if task == "token_classify":
            return [one.token_classes().tolist() for one in alike]
        modes = [mode for mode in self._modes if mode != "all"]
        counts = torch.tensor([[one.count] for one in alike], dtype=torch.float32)
        parts = [_finish(mode, torch.stack([one.states[mode] for one in alike]), counts) for mode in modes]
        vectors = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        found = self._embeddings(vectors) if self._pooling.classes is None else self._classes(vectors)
        if task == "embed&token_classify":
            return [torch.cat([v, one.token_classes()]).tolist() for v, one in zip(found, alike, strict=True)]
        values: list[list[float]] = found.tolist()
        return values

    def _embeddings(self, vectors: Tensor) -> Tensor:
        """Of ``vectors[..., width]``."""
        return self._cut(project(self._pooling.projections, vectors))

    def _cut(self, vectors: Tensor) -> Tensor:
        vectors = vectors[..., : self._dimensions]
        if self._params.normalize:
            # torch.linalg's takes a third of the time of Tensor.norm
            vectors = vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(1e-12)
        return vectors

    def _classes(self, states: Tensor) -> Tensor:
        """Of ``states[R, hidden_size]``."""
        pooling = self._pooling
        assert pooling.classify is not None  # noqa: S101 - it comes with classes
        assert pooling.classes is not None  # noqa: S101 - checked before
        activation = pooling.classes.activation if self._params.normalize else "none"
        return _activate(pooling.classify(states.to(pooling.dtype)), activation)

    def token_vectors(self) -> Tensor:
        states, model = self.states["all"], self._pooling.tokens
        if model is None:
            return self._embeddings(states)
        vectors = self._cut(model.token_vectors(states.to(self._pooling.dtype)))
        return vectors[self._ends[0] == model.config.ends[0] :]

    def token_classes(self) -> Tensor:
        states, model = self.states["all"], self._pooling.tokens
        if model is None:
            return self._classes(states)
        weights = model.token_weights(states.to(self._pooling.dtype), positive=self._params.normalize)
        begin, end = model.config.ends
        return weights[self._ends[0] == begin : len(weights) - (self._ends[1] == end)]


@torch.inference_mode()
def pooled_values(poolers: Sequence[Pooler]) -> list[list[float] | list[list[float]]]:
    """The embedding of each, of ``dimensions`` or the checkpoint's own number, or the probability of classes.

    Of each token for tasks of tokens; BGE-M3 has one weight for each, and nothing for the special tokens
    at both ends. ``embed&token_classify`` has these weights behind the embedding.
    """
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for index, pooler in enumerate(poolers):
        kinds.setdefault(pooler.kind, []).append(index)
    found: dict[int, Any] = {}
    for indices in kinds.values():
        alike = [poolers[index] for index in indices]
        found.update(zip(indices, alike[0].values(alike), strict=True))
    return [found[index] for index in range(len(poolers))]


def _gather_states(mode: str, before: Tensor | None, first: int, hidden: Tensor) -> Tensor:
    """What ``mode`` keeps of the states so far, fp32 ``[hidden_size]``; ``before``: of earlier chunks.

    "all" keeps every one, ``[tokens, hidden_size]``.
    """
    if mode == "all":
        return hidden.float() if before is None else torch.cat([before, hidden.float()])
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


def _finish(mode: str, states: Tensor, counts: Tensor) -> Tensor:
    """The pooled vectors ``[S, hidden_size]`` of texts that have ``counts[S, 1]`` tokens."""
    if mode == "mean":
        return states / counts
    if mode == "mean_sqrt_len":
        return states / counts.sqrt()
    if mode == "weightedmean":  # weights are 1 to count
        return states / (counts * (counts + 1) / 2)
    return states


def _activate(scores: Tensor, activation: str) -> Tensor:
    """Probabilities of the classes, or the scores themselves."""
    if activation == "none":
        return scores
    return torch.sigmoid(scores) if activation == "sigmoid" else scores.softmax(-1)
