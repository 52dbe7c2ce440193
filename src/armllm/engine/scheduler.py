"""Which tokens of which sequences the next step computes."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import Counter
from typing import TYPE_CHECKING

from armllm.engine.sequence import Sequence, SequenceStatus
from armllm.engine.waiting import Served, WaitingQueue, by_rank

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.block_manager import BlockManager
    from armllm.engine.caller import Caller
    from armllm.engine.shares import Shares


class Scheduler:
    """Decodes, then prompts: the lowest priority, then who had least, then the shortest or the first.

    All share one budget of tokens per step: a sequence is served as far as it reaches, and what is left of
    its prompt comes in later steps. When blocks run out, the running sequence of the last rank gives all of
    its own back and is computed again later; the first one always gets on, because the cache holds at least
    one sequence of the greatest length. A client of which nothing runs gets the place of the last sequence of
    the client that has most, and so does a request among those of one client. At most ``max_adapters`` LoRA
    adapters run at once; sequences with another one let others pass.

    ``whole``: prompts are not cut. One that does not fit into the rest of the budget waits for the next step,
    and one that is longer than the budget has a step to itself. ``shares`` bounds what delays decodes, and
    lets a client's short prompts pass its long ones. None: nobody waits for single tokens, and the first to
    come is the first.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_adapters: int = 0,
        num_steps: int = 1,
        whole: bool = False,
    ) -> None:
        self.whole = whole
        self.num_steps = num_steps
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_adapters = max_adapters
        self.shares: Shares | None = None
        self._served = Served()
        self.waiting = WaitingQueue(self._served)
        self.running: list[Sequence] = []  # by rank
        self._scheduled: list[Sequence] = []  # for the next step
        self._budget = 0  # tokens that it has left
        self.num_preemptions = 0
        self.num_prefix_queries = 0  # tokens that were looked for in the prefix cache
        self.num_prefix_hits = 0  # tokens that were found there
        self._arrivals = itertools.count()

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        place = self._served.come(sequence)
        sequence.rank = (sequence.priority, 0 if self.shares is None else place, next(self._arrivals))
        self.waiting.add(sequence)

    def schedule(self) -> list[Sequence]:
        """Choose the next step; each sequence returned has ``num_scheduled_tokens`` and blocks for them."""
        self._budget, self._scheduled = self.max_num_batched_tokens, []
        self.blocks.keep_states(self.running)
        if self.running and self.waiting:
            self._make_room()
        decodes = [sequence for sequence in self.running if sequence.decodes]
        most = None  # tokens of all prompts
        if self.shares is not None:
            self.shares.compare(decodes, self._served.size)
            if decodes or self._served.has_several:
                most = self.shares.prompt_tokens()
        preemptions = self.num_preemptions
        part = -(-len(decodes) // self.num_steps)
        decodes = [sequence for sequence in decodes if not sequence.num_scheduled_tokens][:part]
        for sequence in decodes if self.shares is None else self.shares.decodes(decodes):
            self._continue(sequence, self._budget)
        if not self._scheduled:  # they may all have given way
            for sequence in decodes:
                self._continue(sequence, self._budget)
        if self.waiting or len(self._scheduled) < len(self.running):
            self._schedule_prompts(preemptions, most)
        if self.shares is not None:
            self.shares.scheduled(self._scheduled)
        return self._scheduled

    def room(self, sequences: list[Sequence]) -> int:
        """How many more tokens these may decode before a step has to be scheduled.

        They fill no block and begin none, and others neither run nor wait.
        """
        if self.num_steps > 1 or self.waiting or len(sequences) != len(self.running):
            return 0
        size = self.blocks.block_size
        begun = [one.num_computed_tokens % size for one in sequences]
        return min(size - 1 - count if count else 0 for count in begun)

    def schedule_again(self, sequences: list[Sequence]) -> None:
        """Schedule one more token of each, of which there is `room`."""
        for sequence in sequences:
            sequence.num_scheduled_tokens = 1
            self._served.charge(sequence, 1)

    def ran(self, seconds: float) -> None:
        """The step that was scheduled last took so long."""
        if self.shares is not None:
            self.shares.ran(seconds)

    def _schedule_prompts(self, preemptions: int, most: int | None) -> None:
        """Schedule what is left of prompts that run, and new ones as long as nothing more is preempted.

        ``most``: tokens of all prompts that are not more urgent than what decodes; None: as many as fit.
        """
        urgent = min((sequence.priority for sequence in self._scheduled), default=0)
        rest = [one for one in self.running if not (one.decodes or one.num_scheduled_tokens)]
        turn = self._served.turns(rest)
        rest.sort(key=turn, reverse=True)
        waiting = self._next()
        while self._budget:
            if self.num_preemptions != preemptions:
                waiting = None
            sequence = rest[-1] if rest else waiting
            if sequence is None:
                break
            if waiting is not None and turn(waiting) < turn(sequence):
                sequence = waiting
            limit = self._budget
            if most is not None and sequence.priority >= urgent:
                limit = 0 if self._waits(sequence) else min(most, limit)
            if not limit:
                break
            before = len(self._scheduled)
            if sequence is not waiting:
                rest.pop()
                self._continue(sequence, limit)
            elif self._start(sequence, limit):
                waiting = self._next()
            else:
                preemptions = -1  # nobody else may pass it
            if most is not None and len(self._scheduled) > before:
                most = max(0, most - sequence.num_scheduled_tokens)

    def _waits(self, sequence: Sequence) -> bool:
        """Whether a prompt has to wait for those that are computed now; if none is, it waits for nothing."""
        if self.shares is None or not self.shares.waits(sequence):
            return False
        return any(one.num_scheduled_tokens for one in self.running)

    def _continue(self, sequence: Sequence, limit: int) -> None:
        """Schedule up to ``limit`` tokens of a running sequence, unless it has given its blocks to others."""
        if not limit or sequence.status is not SequenceStatus.RUNNING:
            return
        num_tokens = sequence.num_computed_tokens + self.blocks.chunk(sequence, limit)
        while not self.blocks.can_grow(sequence, num_tokens):
            last = next(one for one in reversed(self.running) if not one.num_scheduled_tokens)
            if last is sequence and any(one.num_scheduled_tokens for one in self._behind(sequence)):
                return  # those give way when their steps have landed
            self._preempt(last)
            if last is sequence:
                return
        self._commit(sequence, num_tokens)

    def _behind(self, sequence: Sequence) -> list[Sequence]:
        """Those of lower rank that run and are not in the step that is being scheduled."""
        first = bisect.bisect_right(self.running, sequence.rank, key=by_rank)
        return [one for one in self.running[first:] if one not in self._scheduled]

    def _start(self, sequence: Sequence, limit: int) -> bool:
        """Schedule up to ``limit`` tokens of a waiting sequence, if there is room for it."""
        if self.whole:
            if self._scheduled and sequence.num_tokens > self._budget:
                return False
            self._budget = limit = max(self._budget, sequence.num_tokens)
        if len(self.running) >= self.max_num_seqs or not self._admit(sequence):
            return False
        self._commit(sequence, sequence.num_computed_tokens + self.blocks.chunk(sequence, limit))
        return True

    def _make_room(self) -> None:
        """Let those that come next run if nothing of their client, or of their request, does."""
        promised = 0  # blocks
        while self.waiting:
            waiting, preemptions = self._next(), self.num_preemptions
            if waiting is None or not self._replace_others(waiting, promised):
                return
            if self.num_preemptions == preemptions:  # there was room: the others need no place of anybody
                return
            promised += self.blocks.missing(waiting, waiting.num_tokens)

    def _replace_others(self, waiting: Sequence, promised: int) -> bool:
        """Let a sequence run if nothing of its client, or of its request, does; return whether it runs.

        It takes the place of one of several of another client, or else of another request of its client.
        ``promised``: blocks that are not its.
        """
        callers = [one.caller for one in self.running]
        if self.whole or waiting.caller in callers:
            return False
        client = waiting.caller.client
        of_client = any(caller.client == client for caller in callers)

        def party(one: Sequence) -> Caller | str:
            return one.caller if of_client else one.caller.client

        others = [
            one
            for one in reversed(self.running)
            if one.priority >= waiting.priority
            and (one.caller.client == client or not of_client)
            and not one.num_scheduled_tokens
        ]
        counts = Counter(map(party, others))
        if self.blocks.waits_for_state(waiting, self.running):
            return False
        while len(self.running) >= self.max_num_seqs or not self._admit(waiting, promised):
            most = max(counts, key=counts.__getitem__, default="")
            if counts[most] < 2:
                return False
            counts[most] -= 1
            last = next(one for one in others if party(one) == most)
            others.remove(last)
            self._preempt(last)
        return True

    def restart(self, sequence: Sequence) -> None:
        """Let a running sequence be computed from its first token again."""
        self._give_back(sequence)

    def finish(self, sequences: Iterable[Sequence]) -> None:
        """Take sequences out, wherever they are, and free their blocks."""
        for sequence in sequences:
            if sequence.status is SequenceStatus.FINISHED:
                continue
            if sequence.status is SequenceStatus.RUNNING:
                del self.running[bisect.bisect_left(self.running, sequence.rank, key=by_rank)]
            else:
                self.waiting.remove(sequence)
            self._served.go(sequence)
            self._give_back(sequence)
            sequence.status = SequenceStatus.FINISHED

    def _next(self) -> Sequence | None:
        """The waiting sequence whose turn it is, of those whose adapter may run beside those that do."""
        running = {sequence.adapter for sequence in self.running} - {None}
        return self.waiting.next({None, *running} if running and len(running) >= self.max_adapters else None)

    def _admit(self, sequence: Sequence, promised: int = 0) -> bool:
        """Let a waiting sequence run, if all of its tokens fit now; ``promised`` blocks are not its.

        A prompt that starts and is thrown out half-way would be work for nothing.
        """
        if not sequence.needs_every_token:
            if self.blocks.waits_for_state(sequence, self.running):
                return False
            sequence.num_computed_tokens = self.blocks.share_prefix(sequence)
        if not self.blocks.can_grow(sequence, sequence.num_tokens, promised):
            self._give_back(sequence)
            return False
        if sequence.num_cached_tokens is None:  # of a sequence that comes back, its own would be found
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if self.blocks.enable_prefix_caching and not sequence.needs_every_token:
                self.num_prefix_queries += sequence.num_tokens
                self.num_prefix_hits += sequence.num_computed_tokens
        sequence.scheduled_ts = sequence.scheduled_ts or time.monotonic()
        sequence.status = SequenceStatus.RUNNING
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=by_rank)
        return True

    def _commit(self, sequence: Sequence, num_tokens: int) -> None:
        num_scheduled = num_tokens - sequence.num_computed_tokens
        self._served.charge(sequence, num_scheduled)
        self.blocks.grow(sequence, num_tokens)
        sequence.num_scheduled_tokens = num_scheduled
        self._budget -= num_scheduled
        self._scheduled.append(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        del self.running[bisect.bisect_left(self.running, sequence.rank, key=by_rank)]
        self._give_back(sequence)
        sequence.status = SequenceStatus.WAITING
        self.waiting.add(sequence)
        self.num_preemptions += 1
        sequence.num_preemptions += 1

    def _give_back(self, sequence: Sequence) -> None:
        self.blocks.release(sequence)
        sequence.num_releases += 1
        sequence.num_computed_tokens = 0
        sequence.num_scheduled_tokens = 0
