"""What requests return."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armllm.errors import ArmllmError


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of a token by the model, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a prompt.

    - finish_reason: "stop", "length", "abort", "error", or None while the request runs. "stop" means an end
      token, a stop string, or the end of what structured_outputs allows.
    - stop_reason: the stop string or stop token id; None for the checkpoint's end tokens.
    - logprobs: for each token, the sampled token and the likeliest ones, if the request asks for them.
    - cumulative_logprob: the sum of the sampled tokens' log-probabilities.
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
    """A request and its completions. `RequestOutputKind` says which ones, and how much of each.

    - num_cached_tokens: number of prompt tokens that came from the prefix cache.
    - prompt_logprobs: for each token of the prompt, this token and the likeliest ones, if the request asks
      for them. The first token follows nothing and has None.
    - error: why the request could not be answered; `LLM` and `AsyncLLM` raise it.
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
    """The embedding of a prompt: a vector."""

    embedding: list[float]


@dataclasses.dataclass(frozen=True)
class EmbeddingRequestOutput:
    """The result of `LLM.embed` for one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: EmbeddingOutput
    num_cached_tokens: int
    finished: bool = True


@dataclasses.dataclass(frozen=True)
class ScoringOutput:
    """The similarity of two texts: the cosine of the angle between their embeddings."""

    score: float


@dataclasses.dataclass(frozen=True)
class ScoringRequestOutput:
    """The result of `LLM.score` for one pair; the token ids are those of the first text, then the second."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: ScoringOutput
    finished: bool = True
