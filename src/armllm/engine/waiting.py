"""Sequences that wait: the lowest priority first, then of who had least, then of the shortest prompt."""

from __future__ import annotations

import bisect
import dataclasses
import heapq
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from armllm.engine.caller import Rank
    from armllm.engine.sequence import Sequence

# An output token counts as two of a prompt, as in Sheng et al. 2024 (arXiv:2401.00588).
PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2
LONG_OUTPUT = 256  # tokens; what a request says of longer ones is often just a limit
LITTLE = 0.1  # of an answer: a client that has this much on average leaves its answers soon
LATEST = 0.1  # the weight of the latest answer in that average


Turn: TypeAlias = tuple[int, int]  # priority, tokens


def by_rank(sequence: Sequence) -> Rank:
    """The order of one client's sequences."""
    return sequence.rank


class Size(NamedTuple):
    """How much comes with a sequence.

    ``tokens``: of all prompts of its request. ``requests``: what its client has queued or running.
    ``sequences``: what its request has. ``is_left``: its client leaves most answers soon.
    """

    tokens: float
    requests: float
    sequences: int
    is_left: bool


@dataclasses.dataclass(slots=True)
class Request:
    """The sequences of a request: the last one's place, how many are not done, the tokens of all prompts."""

    place: float
    num_sequences: int = 0
    tokens: int = 0


@dataclasses.dataclass(slots=True)
class Account:
    """What a client has had, and what of it is queued or running.

    ``tokens``: had. ``time``: of prompts, what each of its requests could have had. ``part``: of its latest
    answers, what it has waited for.
    """

    tokens: int
    time: float = 0.0
    part: float = 1.0
    requests: dict[int, Request] = dataclasses.field(default_factory=dict)

    def come(self, sequence: Sequence) -> float:
        """Count one more sequence. Return its place: when it would be done if all requests had the same.

        So a short prompt need not wait for long ones, nor these for ever, as in weighted fair queueing. What
        follows in the same request comes when those before could be done.
        """
        request = self.requests.setdefault(sequence.caller.request, Request(self.time))
        request.place += sequence.num_prompt_tokens * PROMPT_TOKEN
        if request.num_sequences:
            request.place += OUTPUT_TOKEN * min(sequence.max_tokens, LONG_OUTPUT)
        request.num_sequences += 1
        request.tokens += sequence.num_prompt_tokens
        return request.place

    def go(self, sequence: Sequence) -> None:
        """Count one less."""
        if sequence.max_tokens:  # none: a pooled prompt
            left = sequence.finish_reason is None
            part = sequence.num_output_tokens / sequence.max_tokens if left else 1.0
            self.part += LATEST * (part - self.part)
        request = self.requests[sequence.caller.request]
        request.num_sequences -= 1
        if not request.num_sequences:
            del self.requests[sequence.caller.request]


class Served:
    """The accounts of clients that have something queued or running.

    Who comes is put on a level with the client that had least: nobody saves up turns.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}

    @property
    def has_several(self) -> bool:
        """Whether there are several requests."""
        return len(self._accounts) > 1 or any(len(one.requests) > 1 for one in self._accounts.values())

    def come(self, sequence: Sequence) -> float:
        """Count one more sequence; return its place among those of its client."""
        client = sequence.caller.client
        if client not in self._accounts:
            least = min((one.tokens for one in self._accounts.values()), default=0)
            self._accounts[client] = Account(least)
        return self._accounts[client].come(sequence)

    def go(self, sequence: Sequence) -> None:
        """Count one less, and forget who has none left."""
        account = self._accounts[sequence.caller.client]
        account.go(sequence)
        if not account.requests:
            del self._accounts[sequence.caller.client]

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens that a step computes of a sequence."""
        account = self._accounts[sequence.caller.client]
        if sequence.decodes:
            account.tokens += num_tokens * OUTPUT_TOKEN
            return
        account.tokens += num_tokens * PROMPT_TOKEN
        account.time += num_tokens * PROMPT_TOKEN / len(account.requests)

    def size(self, sequence: Sequence) -> Size:
        """How much has come with it."""
        account = self._accounts[sequence.caller.client]
        request = account.requests[sequence.caller.request]
        return Size(
            request.tokens, len(account.requests), request.num_sequences, is_left=account.part < LITTLE
        )

    def turn(self, first: Sequence) -> Turn:
        """When a client is served, by its first sequence: first who will have had least when that is done.

        So a short prompt need not wait for the long ones of others either.
        """
        rest = first.num_tokens - first.num_computed_tokens
        return first.priority, self._accounts[first.caller.client].tokens + rest * PROMPT_TOKEN

    def turns(self, begun: list[Sequence]) -> Callable[[Sequence], tuple[Turn, Rank]]:
        """What orders those that have ``begun``, and others; the first of each client is first."""
        turns: dict[str, Turn] = {}
        for one in begun:
            turns.setdefault(one.caller.client, self.turn(one))
        return lambda one: (turns.get(one.caller.client) or self.turn(one), one.rank)


class WaitingQueue:
    """A queue for each client, by rank."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._queues: defaultdict[str, list[Sequence]] = defaultdict(list)
        self._length = 0

    def __len__(self) -> int:
        return self._length  # may be asked from any thread

    def __iter__(self) -> Iterator[Sequence]:
        return heapq.merge(*self._queues.values(), key=by_rank)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence among those of its client."""
        bisect.insort(self._queues[sequence.caller.client], sequence, key=by_rank)
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        queue = self._queues[sequence.caller.client]
        del queue[bisect.bisect_left(queue, sequence.rank, key=by_rank)]
        if not queue:
            del self._queues[sequence.caller.client]
        self._length -= 1

    def next(self, adapters: Container[object] | None) -> Sequence | None:
        """Whose turn it is, of those that have one of these adapters; None: any."""
        if adapters is None:
            firsts = [queue[0] for queue in self._queues.values()]
        else:
            found = (
                next((s for s in queue if s.adapter in adapters), None) for queue in self._queues.values()
            )
            firsts = [sequence for sequence in found if sequence is not None]
        return min(firsts, key=lambda one: (*self._served.turn(one), one.rank), default=None)
