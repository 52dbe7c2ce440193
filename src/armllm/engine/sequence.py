"""A request and its sequences: tokens so far, and where their keys and values are."""

from __future__ import annotations

import array
import contextlib
import dataclasses
import enum
import time
from typing import TYPE_CHECKING

from armllm.engine.caller import NOBODY, Caller

if TYPE_CHECKING:
    import random

    from armllm.checkpoint.adapter import Adapter
    from armllm.engine.caller import Rank
    from armllm.engine.detokenizer import Detokenizer
    from armllm.engine.logit_rules import LogitRules
    from armllm.engine.pictures import Pictures
    from armllm.engine.pooling import Pooler
    from armllm.engine.prompt_logprobs import PromptLogprobs
    from armllm.engine.structured import Matcher
    from armllm.errors import ArmllmError
    from armllm.lora.request import LoRARequest
    from armllm.outputs import Logprob
    from armllm.sampling_params import SamplingParams


NO_SLOT = -1  # of `StateSlots`


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
    the output was part of a `RequestOutput`. ``…_ts``: seconds of `time.monotonic`, 0 before it happened.
    ``state_slot``: in `StateSlots`. ``caller``: who asks, as far as the server knows. ``rank``: the order in
    which the scheduler serves those of one client. ``adapter``: LoRA's; None: the model as it is.
    """

    request_id: str
    index: int
    token_ids: array.array[int]
    num_prompt_tokens: int
    max_tokens: int
    params: SamplingParams
    end_token_ids: frozenset[int]
    random: random.Random
    detokenizer: Detokenizer | None
    stop_token_ids: frozenset[int] = frozenset()
    rules: LogitRules | None = None
    priority: int = 0
    caller: Caller = NOBODY
    rank: Rank = (0, 0, 0)
    matcher: Matcher | None = None
    pooler: Pooler | None = None
    prompt_logprobs: PromptLogprobs | None = None
    adapter: Adapter | None = None
    pictures: Pictures | None = None
    status: SequenceStatus = SequenceStatus.WAITING
    block_table: array.array[int] = dataclasses.field(default_factory=lambda: array.array("i"))
    prefix_ids: list[int] = dataclasses.field(default_factory=list)
    state_slot: int = NO_SLOT
    parting: int = 0  # how many tokens of it were in the prefix cache when it was looked for there
    num_computed_tokens: int = 0
    num_scheduled_tokens: int = 0
    num_cached_tokens: int | None = None
    logprobs: list[dict[int, Logprob]] = dataclasses.field(default_factory=list)
    cumulative_logprob: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_preemptions: int = 0
    num_releases: int = 0  # how often it has given its blocks back
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    second_segment: int | None = None  # where the second text of a pair begins
    num_silent_tokens: int = 0  # at the end, an end token that is not part of the text
    num_reported_tokens: int = 0
    num_reported_characters: int = 0
    takes_greatest: bool = dataclasses.field(init=False)  # of its logits as they are, and shows no other

    def __post_init__(self) -> None:
        """Decide what no step changes."""
        self.takes_greatest = self.params.greedy and self.params.logprobs is None and self.rules is None

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def finished(self) -> bool:
        """Whether no token will follow."""
        return self.status is SequenceStatus.FINISHED

    @property
    def reaches_end(self) -> bool:
        """Whether the scheduled tokens reach the last one: its state is the result."""
        return self.num_computed_tokens + self.num_scheduled_tokens == len(self.token_ids)

    @property
    def decodes(self) -> bool:
        """Whether all but its last token are computed."""
        return 0 < self.num_computed_tokens == len(self.token_ids) - 1

    @property
    def in_pictures(self) -> bool:
        """Whether a picture, or what stands before one, is still to be computed."""
        return self.pictures is not None and self.num_computed_tokens < self.pictures.end

    @property
    def samples_next(self) -> bool:
        """Whether a new token comes out of this step."""
        return self.pooler is None and self.reaches_end

    @property
    def shows_text(self) -> bool:
        """Whether someone looks at the text as it is now."""
        return self.detokenizer is not None and (
            self.finish_reason is not None or self.params.streams or bool(self.params.stop)
        )

    @property
    def reader(self) -> Pooler | PromptLogprobs | None:
        """Who wants to see the hidden states of the prompt."""
        return self.pooler or self.prompt_logprobs

    @property
    def needs_every_token(self) -> bool:
        """Whether it is of no use to find tokens in the prefix cache."""
        reader = self.reader
        return reader is not None and reader.needs_every_token

    def append(self, token_id: int) -> None:
        """Take a new token, and end the sequence when it says so."""
        self.token_ids.append(token_id)
        self.last_token_ts = time.monotonic()
        self.first_token_ts = self.first_token_ts or self.last_token_ts
        if token_id in self.end_token_ids:
            self.finish_reason = "stop"
        elif token_id in self.stop_token_ids:
            self.finish_reason, self.stop_reason = "stop", token_id
        if self.finish_reason is not None:
            self.num_silent_tokens = 0 if self.params.include_stop_str_in_output else 1
        elif self.matcher is not None and self.matcher.advance(token_id):
            self.finish_reason = "stop"
        elif self.num_output_tokens >= self.max_tokens:
            self.finish_reason = "length"

    def detokenize(self) -> None:
        """Bring the text up to date where someone looks at it, and end the sequence at a stop string."""
        if self.detokenizer is None or not self.shows_text:
            return
        stop_string = self.detokenizer.catch_up(
            self.token_ids,
            skip=self.num_silent_tokens,
            final=self.finish_reason is not None,
            may_stop=self.num_output_tokens > self.params.min_tokens,
        )
        if stop_string is not None:
            self.finish_reason, self.stop_reason = "stop", stop_string

    def cut(self, reason: str) -> None:
        """End the sequence where it is, with as much of its text as can be had."""
        self.finish_reason = reason
        if self.detokenizer is not None:
            with contextlib.suppress(Exception):  # it may be why the sequence ends
                self.detokenizer.catch_up(self.token_ids, final=True, may_stop=False)


@dataclasses.dataclass(eq=False, slots=True)
class Request:
    """What `LLMEngine.add_request` took; its sequences share the prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[Sequence]
    error: ArmllmError | None = None
    lora_request: LoRARequest | None = None
    arrival_time: float = dataclasses.field(default_factory=time.time)
    queued_ts: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def finished(self) -> bool:
        """Whether all its sequences are."""
        return all(sequence.finished for sequence in self.sequences)
