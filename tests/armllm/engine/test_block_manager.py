"""Blocks are counted right, and a shared block always holds what its sharer would have written."""

from __future__ import annotations

import array
import random
from types import SimpleNamespace

import pytest

from armllm.engine.block_manager import BlockManager

BLOCK_SIZE = 4


def sequence(tokens):
    return SimpleNamespace(
        token_ids=array.array("i", tokens),
        num_tokens=len(tokens),
        block_table=array.array("i"),
        prefix_ids=[],
        adapter=None,
        pictures=None,
    )


def start(blocks, tokens):
    """What the scheduler does to a sequence that comes in whole; returns how many tokens were cached."""
    new = sequence(tokens)
    cached = blocks.share_prefix(new)
    assert blocks.can_grow(new, len(tokens))
    blocks.grow(new, len(tokens))
    return new, cached


def test_blocks_are_shared_up_to_the_last_token():
    blocks = BlockManager(10, BLOCK_SIZE, enable_prefix_caching=True)
    first, cached = start(blocks, range(8))
    assert cached == 0
    second, cached = start(blocks, range(8))
    assert cached == 4, "the last token is computed again, for its logits"
    assert second.block_table[0] == first.block_table[0]
    assert second.block_table[1] != first.block_table[1]
    third, cached = start(blocks, [*range(8), 99])
    assert cached == 8
    assert third.block_table[:2] == first.block_table
    blocks.check_integrity([first, second, third])
    for done in (first, second, third):
        blocks.release(done)
    blocks.check_integrity()
    assert blocks.num_free_blocks == 10


def test_same_tokens_after_another_prefix_are_not_shared():
    blocks = BlockManager(10, BLOCK_SIZE, enable_prefix_caching=True)
    start(blocks, [1, 1, 1, 1, 5, 6, 7, 8, 9])
    _, cached = start(blocks, [2, 2, 2, 2, 5, 6, 7, 8, 9])
    assert cached == 0
    _, cached = start(blocks, [5, 6, 7, 8, 9])
    assert cached == 0


def test_released_blocks_are_remembered_until_they_are_needed():
    blocks = BlockManager(4, BLOCK_SIZE, enable_prefix_caching=True)
    old, _ = start(blocks, range(9))
    blocks.release(old)
    again, cached = start(blocks, range(9))
    assert cached == 8
    blocks.release(again)
    other, _ = start(
        blocks, range(100, 108)
    )  # takes two blocks: the empty ones first, the prompt's start last
    blocks.release(other)
    third, cached = start(blocks, range(9))
    assert cached == 8
    blocks.release(third)
    full, _ = start(blocks, range(200, 216))  # takes all
    blocks.release(full)
    assert start(blocks, range(9))[1] == 0


def test_without_prefix_caching_nothing_is_shared():
    blocks = BlockManager(10, BLOCK_SIZE, enable_prefix_caching=False)
    start(blocks, range(9))
    assert start(blocks, range(9))[1] == 0


def test_forget_empties_the_cache():
    blocks = BlockManager(10, BLOCK_SIZE, enable_prefix_caching=True)
    old, _ = start(blocks, range(9))
    blocks.forget()
    blocks.release(old)
    assert start(blocks, range(9))[1] == 0


def test_integrity_check_sees_a_wrong_count_and_a_lost_block():
    for damage in (
        lambda blocks: blocks.ref_counts.__setitem__(0, 2),
        lambda blocks: blocks._free.popitem(),
        lambda blocks: blocks._keys.clear(),
    ):
        blocks = BlockManager(6, BLOCK_SIZE, enable_prefix_caching=True)
        used, _ = start(blocks, range(9))
        blocks.check_integrity([used])
        damage(blocks)
        with pytest.raises(AssertionError):
            blocks.check_integrity([used])


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_keep_the_books_right(seed):  # noqa: C901 - a loop of three possible events
    """Sequences start, grow and end at random; of two tokens only, so that prefixes meet often."""
    rng = random.Random(seed)  # noqa: S311 - test data
    blocks = BlockManager(12, BLOCK_SIZE, enable_prefix_caching=True)
    written = {}  # block -> everything that its content depends on
    alive = []
    shared = 0
    for _ in range(400):
        action = rng.random()
        if action < 0.4:
            new = sequence([rng.randrange(2) for _ in range(rng.randrange(1, 14))])
            cached = blocks.share_prefix(new)
            for index, block in enumerate(new.block_table):
                assert written[block] == tuple(new.token_ids[: (index + 1) * BLOCK_SIZE])
            shared += cached
            if blocks.can_grow(new, new.num_tokens):
                blocks.grow(new, new.num_tokens)
                alive.append(new)
            else:
                blocks.release(new)
        elif action < 0.8 and alive:
            growing = rng.choice(alive)
            growing.token_ids.append(rng.randrange(2))
            growing.num_tokens += 1
            if blocks.can_grow(growing, growing.num_tokens):
                blocks.grow(growing, growing.num_tokens)
            else:
                blocks.release(growing)
                alive.remove(growing)
        elif alive:
            ended = alive.pop(rng.randrange(len(alive)))
            blocks.release(ended)
        for living in alive:
            for index in range(living.num_tokens // BLOCK_SIZE):
                written[living.block_table[index]] = tuple(living.token_ids[: (index + 1) * BLOCK_SIZE])
        blocks.check_integrity(alive)
    assert shared > 0
    for living in alive:
        blocks.release(living)
    blocks.check_integrity()
    assert blocks.num_free_blocks == 12
