"""What requests return."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armllm.errors import ArmllmError


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """The model's own log-probability of a token, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a prompt.

    finish_reason: "stop" (an end token, a stop string, or the end of what structured_outputs allows),
    "length", "abort", "error", or None while running. stop_reason: the stop string or stop token id that
    ended it; None for the checkpoint's own end tokens.
    logprobs: per token, the chosen one and the likeliest ones, if asked for; cumulative_logprob sums the
    chosen.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        """Whether no token will follow."""
        return self.finish_reason is not None


@dataclasses.dataclass
class RequestOutput:
    """A request and its completions; `RequestOutputKind` says which, and how much of each.

    num_cached_tokens: how much of the prompt came from the prefix cache. prompt_logprobs: per token of the
    prompt (None for the first, which follows nothing), it and the likeliest ones, if asked for. error: why
    the request could not be answered; `LLM` and `AsyncLLM` raise it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    embedding: list[float] | None = None
    error: ArmllmError | None = None


@dataclasses.dataclass(frozen=True)
class EmbeddingOutput:
    """A prompt as a vector."""

    embedding: list[float]


@dataclasses.dataclass(frozen=True)
class EmbeddingRequestOutput:
    """What `LLM.embed` says about one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    num_cached_tokens: int
    finished: bool = True


@dataclasses.dataclass(frozen=True)
class ScoringOutput:
    """How alike two texts are: the cosine of the angle between their embeddings."""

    score: float


@dataclasses.dataclass(frozen=True)
class ScoringRequestOutput:
    """What `LLM.score` says about one pair; the token ids are the first text's, then the second's."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: ScoringOutput
    finished: bool = True
