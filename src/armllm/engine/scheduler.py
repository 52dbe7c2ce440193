"""Which tokens of which sequences the next step computes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from armllm.engine.sequence import Sequence, SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.block_manager import BlockManager


class Scheduler:
    """First come, first served, under one budget of tokens per step that decodes and prefill chunks share.

    A sequence is served as far as the budget reaches; what is left of its prompt comes in later steps. When
    blocks run out, the sequence that was admitted last gives all of its own back and is computed again later;
    the first one always gets on, because the cache holds at least one sequence of the greatest length.
    """

    def __init__(self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self.waiting.append(sequence)

    def schedule(self) -> list[Sequence]:
        """Choose the next step; each sequence returned has ``num_scheduled_tokens`` and blocks for them."""
        budget = self.max_num_batched_tokens
        scheduled: list[Sequence] = []
        preempted = False
        while budget and len(scheduled) < len(self.running):
            sequence = self.running[len(scheduled)]
            num_tokens = sequence.num_computed_tokens + self._chunk(sequence, budget)
            while not self.blocks.can_grow(sequence, num_tokens):
                preempted = True
                if self._preempt_last() is sequence:
                    break
            else:
                budget -= self._commit(sequence, num_tokens)
                scheduled.append(sequence)
        while budget and self.waiting and not preempted and len(self.running) < self.max_num_seqs:
            sequence = self.waiting[0]
            sequence.num_computed_tokens = self.blocks.share_prefix(sequence)
            # Admitted only if all of it fits now: a prompt that starts and is thrown out half-way is work for
            # nothing.
            if not self.blocks.can_grow(sequence, sequence.num_tokens):
                self._give_back(sequence)
                break
            if sequence.num_cached_tokens is None:
                sequence.num_cached_tokens = sequence.num_computed_tokens
            sequence.status = SequenceStatus.RUNNING
            self.running.append(self.waiting.popleft())
            budget -= self._commit(sequence, sequence.num_computed_tokens + self._chunk(sequence, budget))
            scheduled.append(sequence)
        return scheduled

    def finish(self, sequences: Iterable[Sequence]) -> None:
        """Take sequences out, wherever they are, and free their blocks."""
        finished = set(sequences)
        for sequence in finished:
            self._give_back(sequence)
            sequence.status = SequenceStatus.FINISHED
        self.running = [sequence for sequence in self.running if sequence not in finished]
        if any(sequence in finished for sequence in self.waiting):
            self.waiting = deque(sequence for sequence in self.waiting if sequence not in finished)

    @staticmethod
    def _chunk(sequence: Sequence, budget: int) -> int:
        return min(sequence.num_tokens - sequence.num_computed_tokens, budget)

    def _commit(self, sequence: Sequence, num_tokens: int) -> int:
        self.blocks.grow(sequence, num_tokens)
        sequence.num_scheduled_tokens = num_tokens - sequence.num_computed_tokens
        return sequence.num_scheduled_tokens

    def _preempt_last(self) -> Sequence:
        sequence = self.running.pop()
        self._give_back(sequence)
        sequence.status = SequenceStatus.WAITING
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1
        return sequence

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        sequence.num_computed_tokens = 0
        sequence.num_scheduled_tokens = 0
