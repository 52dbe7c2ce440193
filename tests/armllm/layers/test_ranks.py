"""Parts of a tensor come together at every rank, whatever their sizes; nobody waits for ever."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import pytest
import torch

from armllm.kernels._extension import extension
from armllm.layers.ranks import INTERRUPTED, Cut, building_for, current_ranks, own_range

SLOT = 2 << 20  # bytes: kSlotBytes


@contextlib.contextmanager
def ranks_of(size, seconds=20.0):
    file = os.memfd_create("ranks")
    os.ftruncate(file, extension.Ranks.bytes(size))
    try:
        yield [extension.Ranks(file, rank, size, seconds) for rank in range(size)]
    finally:
        os.close(file)


def at_once(*functions):
    """What each of these returns, or the error that it raises, in threads."""
    results = [None] * len(functions)

    def call(number):
        try:
            results[number] = functions[number]()
        except Exception as error:  # noqa: BLE001 - it is the result
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_what_a_rank_waited_awake_reaches_all():
    """It catches a column of zeros in the tool that says where the CPU time of ranks goes."""
    with ranks_of(2) as ranks:
        at_once(ranks[1].receive, lambda: time.sleep(0.05) or ranks[0].send(b"x"))
        assert ranks[0].awake(1) == ranks[1].awake(1) > 0
        with pytest.raises(ValueError, match="no rank 2"):
            ranks[0].awake(2)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_ranges_of_all_ranks_are_the_whole(size):
    for count in (1, 7, 64, 400):
        together = [number for rank in range(size) for number in own_range(count, rank, size)]
        assert together == list(range(count))


@pytest.mark.parametrize(
    ("size", "tokens", "counts", "blocks"),
    [
        (2, 5, [7], 1),
        (3, 4, [9, 5, 400], 1),
        (4, 3, [24, 8], 2),
        (2, 1, [1, 2], 1),
        (2, 0, [6], 1),
        (2, 700, [4096, 33], 1),  # more rows than a slot holds
        (2, 2, [SLOT + 4], 1),  # a row in pieces
        (3, 1, [3], 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_become_the_whole_at_every_rank(size, tokens, counts, blocks, dtype):
    whole = torch.arange(tokens * sum(counts)).view(tokens, sum(counts)).remainder(251).to(dtype)
    with ranks_of(size) as ranks:

        def gather(rank):
            cut = Cut(ranks[rank], blocks)
            parts = [cut.take(part.T).T for part in whole.split(counts, dim=1)]
            part = torch.cat(parts, dim=1)
            assert part.shape[1] == sum(map(cut.num_rows, counts))
            wide = torch.cat([part, part], dim=1)[:, : part.shape[1]]  # rows that lie apart
            both = cut.gatherer(counts)
            return both(part.contiguous()), both(wide)

        for results in at_once(*(lambda rank=rank: gather(rank) for rank in range(size))):
            assert all(torch.equal(found, whole) for found in results)


def test_a_whole_for_rank_0_leaves_the_others_out():
    """And what comes after it is right at all."""
    whole = torch.arange(3 * 10.0).view(3, 10)
    with ranks_of(3) as ranks:

        def gather(rank):
            cut = Cut(ranks[rank])
            (own,) = cut.rows(10)
            part = whole[:, own.start : own.stop].contiguous()
            out = torch.zeros(3, 10)
            extension.gather_parts(out, part, cut.gatherer([10], first_only=True).gatherer)
            return out, cut.gatherer([10])(part)

        found = at_once(*(lambda rank=rank: gather(rank) for rank in range(3)))
    for rank, (first, after) in enumerate(found):
        assert torch.equal(first, torch.zeros(3, 10) if rank else whole)
        assert torch.equal(after, whole)


@pytest.mark.parametrize("length", [0, 1, SLOT - 8, 2 * SLOT + 5])
def test_messages_arrive_whole_and_in_order(length):
    messages = [os.urandom(length), b"x", os.urandom(length)]
    with ranks_of(3) as ranks:

        def send():
            for message in messages:
                ranks[0].send(message)

        receive = [lambda one=one: [one.receive() for _ in messages] for one in ranks[1:]]
        assert at_once(send, *receive)[1:] == [messages, messages]


def test_a_failure_ends_all_waiting_now_and_later():
    with ranks_of(3) as ranks:
        cuts = [Cut(one).gatherer([6]) for one in ranks]
        threading.Timer(0.1, ranks[2].fail, [3]).start()
        started = time.monotonic()
        waiting = [lambda: cuts[0](torch.zeros(1, 2)), ranks[1].receive]
        for error in at_once(*waiting):
            assert isinstance(error, RuntimeError)
        assert time.monotonic() - started < 10
        ranks[0].fail(9)
        assert [one.failure for one in ranks] == [3, 3, 3], "the first one counts"
        with pytest.raises(RuntimeError, match="the ranks were stopped"):
            ranks[0].send(b"more")
        with building_for(ranks[0]), pytest.raises(ValueError, match="stopped"):
            current_ranks()
    assert current_ranks() is None


def test_who_is_late_is_named():
    with ranks_of(3, seconds=0.1) as ranks:
        at_once(lambda: ranks[0].send(b""), ranks[1].receive)
        assert ranks[0].failure == extension.Ranks.LATE + 2
    assert extension.Ranks.LATE == INTERRUPTED + 1


def test_bad_arguments_are_refused():
    with ranks_of(2) as ranks:
        for pieces in ([], [[(0, 0, 1)]], [[(1, 0, 1)], [(0, 1, 1)]], [[(0, -1, 1)], [(0, 1, 1)]], [[], []]):
            with pytest.raises(ValueError, match="pieces"):
                extension.Gatherer(ranks[0], pieces)
        gatherer = extension.Gatherer(ranks[0], [[(0, 0, 2)], [(0, 2, 2)]])
        for out, part in (((1, 3), (1, 2)), ((1, 4), (1, 3)), ((2, 4), (1, 2))):
            with pytest.raises(ValueError, match=r"out|part"):
                extension.gather_parts(torch.empty(out), torch.empty(part), gatherer)
        with pytest.raises(ValueError, match="part has dtype"):
            extension.gather_parts(torch.empty(1, 4), torch.empty(1, 2, dtype=torch.int64), gatherer)
        for arguments in ((0, 2, 2, 1.0), (0, 0, 65, 1.0), (0, 0, 2, 0.0)):
            with pytest.raises(ValueError, match=r"."):
                extension.Ranks(*arguments)
    with open(os.devnull) as file, pytest.raises(ValueError, match="has not"):  # noqa: PTH123
        extension.Ranks(file.fileno(), 0, 2, 1.0)
