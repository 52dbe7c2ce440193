"""Which tokens of which sequences the next step computes."""

from __future__ import annotations

import bisect
import itertools
import time
from typing import TYPE_CHECKING

from armllm.engine.sequence import Sequence, SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.block_manager import BlockManager


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.rank


class Scheduler:
    """The lowest priority first, then first come, under one budget of tokens per step.

    Decodes and chunks of prompts share the budget: a sequence is served as far as it reaches, and what is
    left of its prompt comes in later steps. When blocks run out, the running sequence of the last rank gives
    all of its own back and is computed again later; the first one always gets on, because the cache holds at
    least one sequence of the greatest length. At most ``max_adapters`` LoRA adapters run at once; sequences
    with another one let others pass.

    ``whole``: prompts are not cut. One that does not fit into the rest of the budget waits for the next step,
    and one that is longer than the budget has a step to itself.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_adapters: int = 0,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_adapters = max_adapters
        self.waiting: list[Sequence] = []  # both lists by rank
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self.num_prefix_queries = 0  # tokens that were looked for in the prefix cache
        self.num_prefix_hits = 0  # tokens that were found there
        self._arrivals = itertools.count()

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        sequence.rank = (sequence.priority, next(self._arrivals))
        bisect.insort(self.waiting, sequence, key=_rank)

    def schedule(self) -> list[Sequence]:
        """Choose the next step; each sequence returned has ``num_scheduled_tokens`` and blocks for them."""
        budget = self.max_num_batched_tokens
        scheduled: list[Sequence] = []
        preempted = False
        for sequence in self.running:
            self.blocks.keep_state(sequence)
        while budget and len(scheduled) < len(self.running):
            sequence = self.running[len(scheduled)]
            num_tokens = sequence.num_computed_tokens + self.blocks.chunk(sequence, budget)
            while not self.blocks.can_grow(sequence, num_tokens):
                preempted = True
                if self._preempt_last() is sequence:
                    break
            else:
                budget -= self._commit(sequence, num_tokens)
                scheduled.append(sequence)
        while budget and self.waiting and not preempted and len(self.running) < self.max_num_seqs:
            waiting = self._next()
            if waiting is not None and self.whole:
                if scheduled and waiting.num_tokens > budget:
                    break
                budget = max(budget, waiting.num_tokens)
            if waiting is None or not self._admit(waiting):
                break
            budget -= self._commit(waiting, waiting.num_computed_tokens + self.blocks.chunk(waiting, budget))
            scheduled.append(waiting)
        return scheduled

    def restart(self, sequence: Sequence) -> None:
        """Let a running sequence be computed from its first token again."""
        self._give_back(sequence)

    def finish(self, sequences: Iterable[Sequence]) -> None:
        """Take sequences out, wherever they are, and free their blocks."""
        for sequence in sequences:
            if sequence.status is SequenceStatus.FINISHED:
                continue
            place = self.running if sequence.status is SequenceStatus.RUNNING else self.waiting
            del place[bisect.bisect_left(place, sequence.rank, key=_rank)]
            self._give_back(sequence)
            sequence.status = SequenceStatus.FINISHED

    def _next(self) -> Sequence | None:
        """The first waiting sequence whose adapter may run beside those that do."""
        first = self.waiting[0]
        if first.adapter is None:
            return first
        running = {sequence.adapter for sequence in self.running} - {None}
        if len(running) < self.max_adapters:
            return first
        allowed = {None, *running}
        return next((sequence for sequence in self.waiting if sequence.adapter in allowed), None)

    def _admit(self, sequence: Sequence) -> bool:
        """Let a waiting sequence run, if all of its tokens fit now.

        A prompt that starts and is thrown out half-way would be work for nothing.
        """
        if not sequence.needs_every_token:
            if self.blocks.waits_for_state(sequence, self.running):
                return False
            sequence.num_computed_tokens = self.blocks.share_prefix(sequence)
        if not self.blocks.can_grow(sequence, sequence.num_tokens):
            self._give_back(sequence)
            return False
        if sequence.num_cached_tokens is None:  # of a sequence that comes back, its own would be found
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if self.blocks.enable_prefix_caching and not sequence.needs_every_token:
                self.num_prefix_queries += sequence.num_tokens
                self.num_prefix_hits += sequence.num_computed_tokens
        sequence.scheduled_ts = sequence.scheduled_ts or time.monotonic()
        sequence.status = SequenceStatus.RUNNING
        del self.waiting[bisect.bisect_left(self.waiting, sequence.rank, key=_rank)]
        bisect.insort(self.running, sequence, key=_rank)
        return True

    def _commit(self, sequence: Sequence, num_tokens: int) -> int:
        self.blocks.grow(sequence, num_tokens)
        sequence.num_scheduled_tokens = num_tokens - sequence.num_computed_tokens
        return sequence.num_scheduled_tokens

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self._give_back(sequence)
        sequence.status = SequenceStatus.WAITING
        bisect.insort(self.waiting, sequence, key=_rank)
        self.num_preemptions += 1
        sequence.num_preemptions += 1
        return sequence

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_scheduled_tokens = 0
