"""What requests return."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """The model's own log-probability of a token, its rank (1 is the likeliest) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None


@dataclasses.dataclass
class CompletionOutput:
    """One completion of a prompt.

    finish_reason: "stop" (an end token or a stop string), "length", "abort", or None while running.
    stop_reason: the stop string or stop token id that ended it; None for the checkpoint's own end tokens.
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

    ``num_cached_tokens`` of the prompt came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
