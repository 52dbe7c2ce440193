"""A request and its sequences: tokens so far, and where their keys and values are."""

from __future__ import annotations

import array
import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from armllm.engine.detokenizer import Detokenizer
    from armllm.outputs import Logprob
    from armllm.sampling_params import SamplingParams


class SequenceStatus(enum.Enum):
    """Where a sequence is: waiting has no cache blocks, running has, finished has given them back."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclasses.dataclass(eq=False, slots=True)
class Sequence:
    """One growing list of tokens.

    ``token_ids`` are prompt and output. The keys and values of the first ``num_computed_tokens`` are in the
    cache, in the blocks of ``block_table``; ``prefix_ids`` names what the full ones among them hold (see
    `BlockManager`). Arrays, so that numpy copies them without a Python loop. ``num_reported_…``: how much of
    the output was part of a `RequestOutput`.
    """

    request_id: str
    index: int
    token_ids: array.array[int]
    num_prompt_tokens: int
    max_tokens: int
    params: SamplingParams
    end_token_ids: frozenset[int]
    bad_words: list[list[int]]
    random: random.Random
    detokenizer: Detokenizer | None
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: array.array[int] = dataclasses.field(default_factory=lambda: array.array("i"))
    prefix_ids: list[int] = dataclasses.field(default_factory=list)
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_cached_tokens: int | None = None
    logprobs: list[dict[int, Logprob]] = dataclasses.field(default_factory=list)
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    num_reported_tokens: int = 0
    num_reported_characters: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def finished(self) -> bool:
        """Whether no token will follow."""
        return self.status is SequenceStatus.FINISHED

    @property
    def samples_next(self) -> bool:
        """Whether the scheduled tokens reach the last one, so that a new token comes out of this step."""
        return self.num_computed_tokens + self.num_scheduled_tokens == len(self.token_ids)

    def append(self, token_id: int) -> None:
        """Take a new token, and end the sequence when it, or the text it completes, says so."""
        self.token_ids.append(token_id)
        params = self.params
        reason: str | None = None
        if token_id in self.end_token_ids:
            reason = "stop"
        elif token_id in (params.stop_token_ids or ()):
            reason, self.stop_reason = "stop", token_id
        elif self.num_output_tokens >= self.max_tokens:
            reason = "length"
        if self.detokenizer is not None and (params.streams or params.stop or reason is not None):
            ended_by_token = reason == "stop" and not params.include_stop_str_in_output
            stop_string = self.detokenizer.catch_up(
                self.token_ids,
                skip_last=ended_by_token,
                final=reason is not None,
                may_stop=self.num_output_tokens > params.min_tokens,
            )
            if stop_string is not None:
                reason, self.stop_reason = "stop", stop_string
        if reason is not None:
            self.finish_reason = reason

    def abort(self) -> None:
        """End the sequence where it is, because nobody waits for it any more."""
        self.finish_reason = "abort"
        if self.detokenizer is not None:
            self.detokenizer.catch_up(self.token_ids, final=True, may_stop=False)


@dataclasses.dataclass(eq=False, slots=True)
class Request:
    """What `LLMEngine.add_request` took; its sequences share the prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[Sequence]

    @property
    def finished(self) -> bool:
        """Whether all its sequences are."""
        return all(sequence.finished for sequence in self.sequences)
