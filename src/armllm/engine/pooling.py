"""Embeddings and classes: from the hidden states of a prompt's tokens to one vector, or one of each."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
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

    import numpy.typing as npt
    from torch import Tensor

    from armllm.checkpoint.config import Classes, ModelConfig
    from armllm.models import Model, TokenModel
    from armllm.pooling_params import PoolingParams

    Array = npt.NDArray[np.floating[Any]]

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

    After a preemption they come from the first one again. What is on a few numbers is done by numpy: the
    products have emptied the caches, and torch's way to a sum takes twice as long then.
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
        self.states: dict[str, Array] = {}
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
        states: Array = hidden.float().numpy()
        if first < self._length:
            for mode in self._modes:
                before = self.states.get(mode) if first else None
                self.states[mode] = _gather_states(mode, before, first, states[: self._length - first])
        self.count = first + len(states)

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
        counts = np.array([[one.count] for one in alike])
        parts = [_finish(mode, np.stack([one.states[mode] for one in alike]), counts) for mode in modes]
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts, -1)
        found = self._embeddings(vectors) if self._pooling.classes is None else self._classes(vectors)
        if task == "embed&token_classify":
            return [[*v, *one.token_classes().tolist()] for v, one in zip(found.tolist(), alike, strict=True)]
        values: list[list[float]] = found.tolist()
        return values

    def _embeddings(self, vectors: Array) -> Array:
        """Of ``vectors[..., width]``."""
        if self._pooling.projections:
            vectors = _by_torch(vectors, functools.partial(project, self._pooling.projections))
        return self._cut(vectors)

    def _cut(self, vectors: Array) -> Array:
        vectors = vectors[..., : self._dimensions]
        if self._params.normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors

    def _classes(self, states: Array) -> Array:
        """Of ``states[R, hidden_size]``."""
        pooling = self._pooling
        assert pooling.classify is not None  # noqa: S101 - it comes with classes
        assert pooling.classes is not None  # noqa: S101 - checked before
        activation = pooling.classes.activation if self._params.normalize else "none"
        return _activate(_by_torch(states, pooling.classify, pooling.dtype), activation)

    def token_vectors(self) -> Array:
        states, model = self.states["all"], self._pooling.tokens
        if model is None:
            return self._embeddings(states)
        vectors = self._cut(_by_torch(states, model.token_vectors, self._pooling.dtype))
        return vectors[self._ends[0] == model.config.ends[0] :]

    def token_classes(self) -> Array:
        states, model = self.states["all"], self._pooling.tokens
        if model is None:
            return self._classes(states)
        weigh = functools.partial(model.token_weights, positive=self._params.normalize)
        weights = _by_torch(states, weigh, self._pooling.dtype)
        begin, end = model.config.ends
        return weights[self._ends[0] == begin : len(weights) - (self._ends[1] == end)]


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


def _gather_states(mode: str, before: Array | None, first: int, states: Array) -> Array:
    """What ``mode`` keeps of the states ``[tokens, hidden_size]`` so far; ``before``: of earlier chunks.

    It is ``[hidden_size]``, sums in float64. "all" keeps every one.
    """
    if mode == "all":
        return states if before is None else np.concatenate([before, states])
    if mode == "cls":
        return states[0] if before is None else before
    if mode == "last":
        last: Array = states[-1]
        return last
    if mode == "max":
        most: Array = states.max(0)
        return most if before is None else np.maximum(before, most)
    if mode == "weightedmean":
        states = states * np.arange(first + 1, first + len(states) + 1)[:, None]
    total: Array = states.sum(0, dtype=np.float64)
    return total if before is None else before + total


def _finish(mode: str, states: Array, counts: npt.NDArray[np.int64]) -> Array:
    """The pooled vectors fp32 ``[S, hidden_size]`` of texts that have ``counts[S, 1]`` tokens."""
    if mode == "mean":
        states = states / counts
    elif mode == "mean_sqrt_len":
        states = states / np.sqrt(counts)
    elif mode == "weightedmean":  # weights are 1 to count
        states = states / (counts * (counts + 1) / 2)
    return states.astype(np.float32, copy=False)


def _by_torch(
    states: Array, compute: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32
) -> Array:
    """What a part of the model makes of states."""
    found: Array = compute(torch.from_numpy(states).to(dtype)).float().numpy()
    return found


def _activate(scores: Array, activation: str) -> Array:
    """Probabilities of the classes, or the scores themselves."""
    if activation == "none":
        return scores
    softmax = functools.partial(torch.softmax, dim=-1)
    return _by_torch(scores, torch.sigmoid if activation == "sigmoid" else softmax)
