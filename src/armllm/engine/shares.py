"""How much of the time those may take whom others wait for.

Prompts are computed in chunks, so that decodes go on beside them. A chunk is so large that it costs little to
read the weights once more for each.

Beyond that, whoever decodes keeps half of the speed that it has alone beside requests that are twice as
large: their prompts have twice the tokens that it has had, or they have twice as many streams. A step with
them that takes t, instead of s, owes 1.5 (t - 2s), which the steps without them pay. So others keep half of
their speed where t is 2s, and up to 60% where it is longer. Requests that are alike owe nothing: if the
streams of some went on alone, all of them would lose most of the speed of a batch.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Sequences

    from armllm.engine.caller import Caller
    from armllm.engine.sequence import Sequence

CHUNK_SECONDS = 0.5  # of prompts, while others decode, or may come
GREEDY = 2  # times as many tokens of a prompt, or streams, as the client or the request that has least
WITH_GRAMMAR = 3  # streams that one with a grammar counts as: what may come next takes long to find
LEAST_CHUNK, FIRST_CHUNK, CHUNK = 16, 128, 256  # tokens; the last beside decodes
MOST_SECONDS = 5.0  # that anybody owes
OWED = 1.5  # times what a step takes too long
LATEST = 0.3  # the weight of the latest step in an average
FADING = 0.97  # of an average, for each step that can't tell it


class Shares:
    """Who takes part in the next step, by what the ones before have taken."""

    def __init__(self) -> None:
        self._prompts_owe = self._greedy_owe = 0.0  # seconds
        self._token_seconds = 0.0  # of a prompt; 0: not known yet, here and below
        self._decode_seconds = self._patient_seconds = 0.0  # of a step without prompts: of all, of the others
        self._greedy: frozenset[Caller] = frozenset()  # with many more streams than others
        self._decoding: set[Caller] = set()  # in the step that was scheduled last
        self._num_prompt_tokens = 0  # in that step
        self._little = math.inf  # longer prompts let those wait who decode
        self._has_long = False  # whether one of them is in that step

    def decodes(self, decodes: list[Sequence]) -> list[Sequence]:
        """Those that may take part in the next step."""
        of_requests: Counter[Caller] = Counter()
        of_clients: Counter[str] = Counter()
        for sequence in decodes:
            streams = 1 if sequence.matcher is None else WITH_GRAMMAR
            of_requests[sequence.caller] += streams
            of_clients[sequence.caller.client] += streams
        few, little = (
            GREEDY * min(of_requests.values(), default=0),
            GREEDY * min(of_clients.values(), default=0),
        )
        self._greedy = frozenset(
            caller
            for caller, count in of_requests.items()
            if count > few or of_clients[caller.client] > little
        )
        if self._greedy_owe > 0 and self._greedy:
            return [sequence for sequence in decodes if sequence.caller not in self._greedy]
        return decodes

    def longest(self, decodes: list[Sequence]) -> float:
        """How many tokens the prompts of a request may have to be computed in the next step."""
        self._little = GREEDY * min((sequence.num_computed_tokens for sequence in decodes), default=math.inf)
        return self._little if self._prompts_owe > 0 else math.inf

    def prompt_tokens(self, *, beside: bool, several: bool) -> int | None:
        """How many tokens of prompts the next step may compute; None: all.

        ``beside``: while others decode. ``several``: requests are there.
        """
        if not (beside or several):
            return None
        if not self._token_seconds:
            return FIRST_CHUNK
        most = max(LEAST_CHUNK, int(CHUNK_SECONDS / self._token_seconds))
        return min(most, CHUNK) if beside else most

    def scheduled(self, sequences: Sequences[Sequence], size: Callable[[Sequence], int]) -> None:
        """Remember what the next step computes. ``size``: tokens of all prompts of a sequence's request."""
        self._decoding = {sequence.caller for sequence in sequences if sequence.decodes}
        prompts = [one for one in sequences if not one.decodes]
        self._num_prompt_tokens = sum(one.num_scheduled_tokens for one in prompts)
        self._has_long = any(size(one) > self._little for one in prompts)

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
            if self._has_long:
                self._prompts_owe = _more(self._prompts_owe, seconds - 2 * usual)
            self._count_greedy(usual, paid=0.0)
        else:
            self._prompts_owe = max(0.0, self._prompts_owe - seconds)
            if all_decoded:
                self._decode_seconds = _average(self._decode_seconds, seconds)
            else:
                self._patient_seconds = _average(self._patient_seconds, seconds)
            self._count_greedy(seconds, paid=seconds)

    def _count_greedy(self, seconds: float, paid: float) -> None:
        """A step's decodes took so long; others have ``paid`` so much of it if greedy ones were not there."""
        if not self._greedy:
            self._greedy_owe = 0.0
        elif self._decoding & self._greedy:
            self._greedy_owe = _more(self._greedy_owe, seconds - 2 * self._patient_seconds)
            self._patient_seconds *= FADING
        else:
            self._greedy_owe = max(0.0, self._greedy_owe - paid)


def _more(owed: float, seconds: float) -> float:
    return min(owed + OWED * max(0.0, seconds), MOST_SECONDS)


def _average(average: float, latest: float) -> float:
    return average + LATEST * (latest - average) if average else latest
