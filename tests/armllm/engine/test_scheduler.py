"""Scheduling without a model: limits are kept, everybody finishes, the first come are served first."""

from __future__ import annotations

import array
import random

import pytest

from armllm import SamplingParams
from armllm.engine.block_manager import BlockManager
from armllm.engine.scheduler import Scheduler
from armllm.engine.sequence import Sequence, SequenceStatus


def make_sequence(num_prompt_tokens, max_tokens, token=0):
    return Sequence(
        request_id="0",
        index=0,
        token_ids=array.array("i", [token] * num_prompt_tokens),
        num_prompt_tokens=num_prompt_tokens,
        max_tokens=max_tokens,
        params=SamplingParams(),
        end_token_ids=frozenset(),
        random=random.Random(0),  # noqa: S311 - test data
        detokenizer=None,
    )


def make_scheduler(num_blocks, *, block_size=4, max_num_seqs=8, budget=16, caching=False):
    blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
    return Scheduler(blocks, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)


def step(scheduler, next_token=0):
    """One step with a model that always says the same; returns what was scheduled."""
    scheduled = scheduler.schedule()
    counts = [(sequence, sequence.num_scheduled_tokens) for sequence in scheduled]
    for sequence in scheduled:
        samples = sequence.samples_next
        sequence.num_computed_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0
        if samples:
            sequence.append(next_token)
    scheduler.finish([sequence for sequence in scheduled if sequence.finish_reason])
    scheduler.blocks.check_integrity(scheduler.running)
    return counts


def test_a_step_mixes_decodes_with_a_chunk_of_a_prompt():
    scheduler = make_scheduler(100, budget=10)
    first, second = make_sequence(4, 10, token=1), make_sequence(20, 10, token=2)
    scheduler.add(first)
    assert step(scheduler) == [(first, 4)]
    scheduler.add(second)
    assert step(scheduler) == [(first, 1), (second, 9)]
    assert step(scheduler) == [(first, 1), (second, 9)]
    assert step(scheduler) == [(first, 1), (second, 2)]
    assert step(scheduler) == [(first, 1), (second, 1)]


def test_the_last_admitted_gives_way_and_comes_back_first():
    scheduler = make_scheduler(4, budget=100)
    first, second, third = (make_sequence(7, 6, token) for token in range(3))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    assert [sequence for sequence, _ in step(scheduler)] == [first, second]
    step(scheduler)
    assert [sequence for sequence, _ in step(scheduler)] == [first]
    assert second.status is SequenceStatus.WAITING
    assert list(scheduler.waiting) == [second, third]
    assert scheduler.num_preemptions == 1


def test_finish_takes_sequences_from_anywhere():
    scheduler = make_scheduler(100, max_num_seqs=1)
    running, waiting = make_sequence(4, 10), make_sequence(4, 10)
    scheduler.add(running)
    scheduler.add(waiting)
    step(scheduler)
    scheduler.finish([waiting])
    assert not scheduler.waiting
    scheduler.finish([running])
    assert not scheduler.running
    assert scheduler.blocks.num_free_blocks == 100


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_random_loads_finish_within_the_limits(seed, caching):
    rng = random.Random(seed)  # noqa: S311 - test data
    longest = 40
    block_size = rng.choice([1, 4, 8])
    num_blocks = -(-longest // block_size) + rng.randrange(8)
    budget, max_num_seqs = rng.choice([1, 3, 17, 200]), rng.choice([1, 2, 10])
    scheduler = make_scheduler(
        num_blocks, block_size=block_size, max_num_seqs=max_num_seqs, budget=budget, caching=caching
    )
    sequences = []
    for _ in range(25):
        prompt = rng.randrange(1, longest)
        sequences.append(
            make_sequence(prompt, rng.randrange(1, longest - prompt + 1), token=rng.randrange(2))
        )
    arriving = list(sequences)
    for _ in range(20_000):
        if arriving and rng.random() < 0.3:
            scheduler.add(arriving.pop(0))
        counts = step(scheduler)
        assert sum(count for _, count in counts) <= budget
        assert all(count > 0 for _, count in counts)
        assert len(scheduler.running) <= max_num_seqs
        assert counts or not (scheduler.running or scheduler.waiting), (
            "work is there and nothing was scheduled"
        )
        if not (arriving or scheduler.running or scheduler.waiting):
            break
    assert all(sequence.num_output_tokens == sequence.max_tokens for sequence in sequences)
    assert scheduler.blocks.num_free_blocks == num_blocks
