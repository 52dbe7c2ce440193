"""How much of the time those may take whom others wait for.

A decode step of one stream takes some milliseconds, a chunk of a long prompt a second, and a step with the
streams of a client that has a hundred takes as long as they all need. Whoever decodes beside them keeps half
of the speed that it has without them: a step with them that takes t, instead of s, owes t - 2s, which the
steps without them pay. So others get 1 + (t - 2s) / s tokens in 2t - 2s, which is one each 2s.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    from armllm.engine.sequence import Sequence

CHUNK_SECONDS, ALONE_SECONDS = 0.2, 1.0  # of prompts, while others decode, or may come
GREEDY = 2  # times as many streams as who has least
LEAST_CHUNK, FIRST_CHUNK = 16, 128  # tokens
MOST_SECONDS = 5.0  # that anybody owes
LATEST = 0.3  # the weight of the latest step in an average
FADING = 0.97  # of an average, for each step that can't tell it


class Shares:
    """Who takes part in the next step, by what the ones before have taken."""

    def __init__(self) -> None:
        self._prompts_owe = self._greedy_owe = 0.0  # seconds
        self._token_seconds = 0.0  # of a prompt; 0: not known yet, here and below
        self._decode_seconds = self._patient_seconds = 0.0  # of a step without prompts: of all, of the others
        self._greedy: frozenset[str] = frozenset()  # clients with many more streams than another one
        self._decoding: set[str] = set()  # clients, in the step that was scheduled last
        self._num_prompt_tokens = 0  # in that step

    def decodes(self, decodes: list[Sequence]) -> list[Sequence]:
        """Those that may take part in the next step."""
        counts = Counter(sequence.client for sequence in decodes)
        few = GREEDY * min(counts.values(), default=0)
        self._greedy = frozenset(client for client, count in counts.items() if count > few)
        if self._greedy_owe > 0 and self._greedy:
            return [sequence for sequence in decodes if sequence.client not in self._greedy]
        return decodes

    def prompt_tokens(self, *, beside: bool, num_clients: int) -> int | None:
        """How many tokens of prompts the next step may compute; None: all.

        ``beside``: while others decode.
        """
        if beside and self._prompts_owe > 0:
            return 0
        if not beside and num_clients < 2:
            return None
        if not self._token_seconds:
            return FIRST_CHUNK
        seconds = CHUNK_SECONDS if beside else ALONE_SECONDS
        return max(LEAST_CHUNK, int(seconds / self._token_seconds))

    def scheduled(self, sequences: Sequences[Sequence]) -> None:
        """Remember what the next step computes."""
        self._decoding = {sequence.client for sequence in sequences if sequence.decodes}
        self._num_prompt_tokens = sum(one.num_scheduled_tokens for one in sequences if not one.decodes)

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
    return min(owed + max(0.0, seconds), MOST_SECONDS)


def _average(average: float, latest: float) -> float:
    return average + LATEST * (latest - average) if average else latest
