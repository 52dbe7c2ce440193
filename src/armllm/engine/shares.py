"""How much of the time those may take whom others wait for.

Prompts are computed in chunks, so that decodes go on beside them. A chunk is so large that it costs little to
read the weights once more for each.

Beyond that, whoever decodes keeps a part p of the speed that it has alone beside those that are more than
twice as large: requests whose prompts have twice the tokens that it has had, requests with twice as many
streams, running or waiting, and clients with twice as many streams or requests. So it does beside many
requests of a client whose answers are brief, because these gain nothing from a batch with long ones, and
beside the prompts of a client that soon leaves most of its answers. A step with them that takes t, instead of
s, owes (pt - s) / (1 - p), which the steps without them pay. Requests that are alike owe nothing: if the
streams of some went on alone, all of them would lose most of the speed of a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from armllm.engine.waiting import LONG_OUTPUT, Size

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Sequences

    from armllm.engine.caller import Caller
    from armllm.engine.sequence import Sequence

CHUNK_SECONDS = 0.5  # of prompts, at most, while others decode, or may come
GREEDY = 2  # times as many tokens of a prompt, or streams, as the client or the request that has least
BRIEF, FEW = 16, 2  # times shorter than the longest answer; more requests of a client are many
WITH_GRAMMAR = 3  # streams that one with a grammar counts as: what may come next takes long to find
LEAST_CHUNK, FIRST_CHUNK, CHUNK = 16, 128, 256  # tokens
MOST_SECONDS = 5.0  # that anybody owes
PART = 0.75  # of its steps that who waits keeps: half of its speed, with all else that a server does
LATEST = 0.3  # the weight of the latest step in an average
FADING = 0.97  # of an average, for each step that can't tell it


class Shares:
    """Who takes part in the next step, by what the ones before have taken."""

    def __init__(self) -> None:
        self._prompts_owe = self._greedy_owe = 0.0  # seconds
        self._token_seconds = 0.0  # of a prompt; 0: not known yet, here and below
        self._decode_seconds = self._patient_seconds = 0.0  # of a step without prompts: of all, of the others
        self._compared: list[Sequence] = []  # who decoded when these were found:
        self._greedy: frozenset[Caller] = frozenset()  # with many more streams than others
        self._patient: list[Sequence] = []  # the others
        self._decoding: set[Caller] = set()  # in the step that was scheduled last
        self._num_prompt_tokens = 0  # in that step
        self._size: Callable[[Sequence], Size] = lambda _sequence: Size(0, 0, 0, is_left=False)
        self._beside: list[Sequence] = []  # who decodes
        self._longest = 0  # of their answers, in tokens
        self._little: tuple[float, float] | None = None  # tokens and requests; None: not asked for yet
        self._has_large = False  # whether one of them is in that step

    def decodes(self, decodes: list[Sequence]) -> list[Sequence]:
        """Those that may take part in the next step."""
        if decodes != self._compared:
            brief = {sequence.caller for sequence in decodes if self._is_brief(sequence)}
            self._compared, self._greedy = decodes, _greedy(decodes, self._size) | brief
            self._patient = [sequence for sequence in decodes if sequence.caller not in self._greedy]
        return self._patient if self._greedy_owe > 0 else decodes

    def compare(self, decodes: list[Sequence], size: Callable[[Sequence], Size]) -> None:
        """Prompts may delay ``decodes``, or not. ``size``: how much has come with a sequence."""
        self._size = size
        self._beside, self._little = decodes, None
        self._longest = min(max((one.max_tokens for one in decodes), default=0), LONG_OUTPUT)

    def waits(self, sequence: Sequence) -> bool:
        """Whether a prompt has to wait until others have had their part."""
        return self._prompts_owe > 0 and self._is_large(sequence)

    def _is_large(self, sequence: Sequence) -> bool:
        if self._little is None:
            tokens = min((one.num_computed_tokens for one in self._beside), default=math.inf)
            requests = min((self._size(one).requests for one in self._beside), default=math.inf)
            self._little = GREEDY * tokens, GREEDY * requests
        size = self._size(sequence)
        if size.tokens > self._little[0] or size.requests > self._little[1]:
            return True
        return (size.is_left and size.requests > FEW) or self._is_brief(sequence)

    def _is_brief(self, sequence: Sequence) -> bool:
        return sequence.max_tokens * BRIEF <= self._longest and self._size(sequence).requests > FEW

    def prompt_tokens(self) -> int:
        """How many tokens of prompts the next step may compute while several requests are there."""
        if not self._token_seconds:
            return FIRST_CHUNK
        return max(LEAST_CHUNK, min(CHUNK, int(CHUNK_SECONDS / self._token_seconds)))

    def scheduled(self, sequences: Sequences[Sequence]) -> None:
        """Remember what the next step computes."""
        self._decoding = {sequence.caller for sequence in sequences if sequence.decodes}
        prompts = [one for one in sequences if not one.decodes]
        self._num_prompt_tokens = sum(one.num_scheduled_tokens for one in prompts)
        self._has_large = any(map(self._is_large, prompts))

    def ran(self, seconds: float) -> None:
        """It took so long."""
        all_decoded = not self._greedy or bool(self._decoding & self._greedy)
        usual = self._decode_seconds if all_decoded else self._patient_seconds
        if self._num_prompt_tokens >= LEAST_CHUNK:
            of_prompts = max(seconds - usual, seconds / 10) if self._decoding else seconds
            self._token_seconds = _average(self._token_seconds, of_prompts / self._num_prompt_tokens)
        if not self._decoding:
            self._prompts_owe = self._greedy_owe = 0.0
        elif self._num_prompt_tokens:
            if self._has_large:
                self._prompts_owe = _more(self._prompts_owe, seconds, usual)
            self._count_greedy(usual)
        else:
            if all_decoded:
                self._decode_seconds = _average(self._decode_seconds, seconds)
            else:
                self._patient_seconds = _average(self._patient_seconds, seconds)
            self._count_greedy(seconds)
            if not self._decoding & self._greedy:
                self._pay(seconds)

    def _count_greedy(self, seconds: float) -> None:
        """A step's decodes took so long."""
        if not self._greedy:
            self._greedy_owe = 0.0
        elif self._decoding & self._greedy:
            self._greedy_owe = _more(self._greedy_owe, seconds, self._patient_seconds)
            self._patient_seconds *= FADING

    def _pay(self, seconds: float) -> None:
        """A step had neither prompts nor those who are greedy; what both owe is paid in equal parts."""
        if self._prompts_owe > 0 and self._greedy_owe > 0:
            seconds /= 2
        self._prompts_owe = max(0.0, self._prompts_owe - seconds)
        self._greedy_owe = max(0.0, self._greedy_owe - seconds)


def _greedy(decodes: list[Sequence], size: Callable[[Sequence], Size]) -> frozenset[Caller]:
    """The requests that have many more streams than others, or whose clients do."""
    of_requests: Counter[Caller] = Counter()
    of_clients: Counter[str] = Counter()
    for sequence in decodes:
        streams = 1 if sequence.matcher is None else WITH_GRAMMAR
        of_requests[sequence.caller] += streams
        of_clients[sequence.caller.client] += streams
    for sequence in decodes:  # what waits would run if others had not come
        of_requests[sequence.caller] = max(of_requests[sequence.caller], size(sequence).sequences)
    few = GREEDY * min(of_requests.values(), default=0)
    little = GREEDY * min(of_clients.values(), default=0)
    return frozenset(
        caller for caller, count in of_requests.items() if count > few or of_clients[caller.client] > little
    )


def _more(owed: float, seconds: float, usual: float) -> float:
    """What is owed after a step of so many seconds, beside the usual ones of others."""
    return min(owed + max(0.0, PART * seconds - usual) / (1 - PART), MOST_SECONDS)


def _average(average: float, latest: float) -> float:
    return average + LATEST * (latest - average) if average else latest
