"""The outputs of requests."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.errors import ArmllmError
    from armllm.lora.request import LoRARequest


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability of a token by the model, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None

    def __reduce__(self) -> tuple[type[Logprob], tuple[float, int, str | None]]:
        """Three times as fast as what a frozen dataclass has: answers may hold a million of these."""
        return Logprob, (self.logprob, self.rank, self.decoded_token)


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a prompt.

    - finish_reason: "stop", "length", "abort", "error", or None while the request runs. "stop" means an end
      token, a stop string, or the end of what structured_outputs allows.
    - stop_reason: the stop string or stop token id; None for the checkpoint's end tokens.
    - logprobs: for each token, the sampled token and the likeliest ones, if the request asks for them.
    - cumulative_logprob: the sum of the sampled tokens' log-probabilities.
    - lora_request: the adapter that the request named.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    # of vLLM, for what this engine does not do
    routed_experts: ClassVar[None] = None
    sampling_mask: ClassVar[None] = None
    spec_decode_metrics: ClassVar[None] = None
    weight_versions: ClassVar[None] = None

    def finished(self) -> bool:
        """Whether no token will follow."""
        return self.finish_reason is not None


@dataclasses.dataclass(slots=True)
class RequestStateStats:
    """When a request went through the engine, and what it took. Names are vLLM's.

    ``arrival_time`` is a wall-clock time, the others are seconds of `time.monotonic`; 0 where it has not
    happened yet. The first and last token may be those of different sequences of the request.
    """

    num_generation_tokens: int = 0
    num_preemptions: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0

    @property
    def first_token_latency(self) -> float:
        """Seconds from the arrival to the first token; 0 before there is one."""
        return self.first_token_ts - self.queued_ts if self.first_token_ts else 0.0


@dataclasses.dataclass
class RequestOutput:
    """A request and its completions. `RequestOutputKind` says which ones, and how much of each.

    - num_cached_tokens: number of prompt tokens that came from the prefix cache.
    - prompt_logprobs: for each token of the prompt, this token and the likeliest ones, if the request asks
      for them. The first token follows nothing and has None.
    - metrics: when the request was queued, scheduled and answered.
    - error: why the request could not be answered; `LLM` and `AsyncLLM` raise it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    metrics: RequestStateStats | None = None
    embedding: list[float] | list[list[float]] | None = None
    error: ArmllmError | None = None
    lora_request: LoRARequest | None = None
    # of vLLM, for what this engine does not do
    encoder_prompt: ClassVar[None] = None
    encoder_prompt_token_ids: ClassVar[None] = None
    num_cache_creation_tokens: ClassVar[None] = None
    prompt_token_id_logprobs: ClassVar[None] = None
    kv_transfer_params: ClassVar[None] = None
    ec_transfer_params: ClassVar[None] = None


@dataclasses.dataclass(frozen=True)
class PoolingOutput:
    """What the model's states of a prompt were pooled into: ``data[size]``, fp32.

    It is ``data[tokens, size]`` for tasks of tokens, and ``data[tokens]`` for BGE-M3's weights.
    """

    data: Tensor


@dataclasses.dataclass(frozen=True)
class EmbeddingOutput:
    """The embedding of a prompt: a vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The length of the vector."""
        return len(self.embedding)


@dataclasses.dataclass(frozen=True)
class ClassificationOutput:
    """The probability of each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.probs)


@dataclasses.dataclass(frozen=True)
class ScoringOutput:
    """The similarity of two texts: the cosine of the angle between their embeddings."""

    score: float


Output = TypeVar("Output")


@dataclasses.dataclass(frozen=True)
class PoolingRequestOutput(Generic[Output]):
    """The result of a request that pools a prompt's states: `LLM.encode` and its relatives."""

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    prompt: str | None = None
    error: ClassVar[None] = None  # a request that fails raises


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The result of `LLM.embed` for one prompt."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The result of a classification of one prompt."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The result of `LLM.score` for one pair; the token ids are those of the first text, then the second."""
