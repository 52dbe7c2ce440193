"""Sequences that wait: the lowest priority first, then of who had least, then first come."""

from __future__ import annotations

import bisect
import heapq
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from armllm.engine.sequence import Sequence

# An output token counts as two of a prompt, as in Sheng et al. 2024 (arXiv:2401.00588).
PROMPT_TOKEN, OUTPUT_TOKEN = 1, 2


def by_rank(sequence: Sequence) -> tuple[int, int]:
    """First come, within a priority."""
    return sequence.rank


class Served:
    """How much each client has had, for as long as it has something queued or running.

    Who comes is put on a level with the client that had least: nobody saves up turns.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._sequences: Counter[str] = Counter()

    def come(self, client: str) -> None:
        """Count one more sequence of a client."""
        if not self._sequences[client]:
            self._tokens[client] = min(self._tokens.values(), default=0)
        self._sequences[client] += 1

    def go(self, client: str) -> None:
        """Count one less, and forget who has none left."""
        self._sequences[client] -= 1
        if not self._sequences[client]:
            del self._sequences[client], self._tokens[client]

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Count tokens that a step computes of a sequence."""
        self._tokens[sequence.client] += num_tokens * (OUTPUT_TOKEN if sequence.decodes else PROMPT_TOKEN)

    def turn(self, first: Sequence) -> tuple[int, int]:
        """When a client is served, by its first sequence: first who will have had least when that is done.

        So a short prompt need not wait for the long ones of others, as in weighted fair queueing.
        """
        rest = first.num_tokens - first.num_computed_tokens
        return first.priority, self._tokens[first.client] + rest * PROMPT_TOKEN

    @property
    def num_clients(self) -> int:
        """How many have something queued or running."""
        return len(self._tokens)


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
        """Queue a sequence, before those of its client that came later."""
        bisect.insort(self._queues[sequence.client], sequence, key=by_rank)
        self._length += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        queue = self._queues[sequence.client]
        del queue[bisect.bisect_left(queue, sequence.rank, key=by_rank)]
        if not queue:
            del self._queues[sequence.client]
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
