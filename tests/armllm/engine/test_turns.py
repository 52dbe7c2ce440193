"""Who gives much work does not hold up those who give little."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time

import pytest

from armllm.engine.caller import Caller
from armllm.engine.turns import Turns

DEADLINE = 60.0


class Order:
    """Pieces of work, which note that they are done. The first one waits until it may ``go``."""

    def __init__(self, turns):
        self.turns, self.done, self.go, self.begun = turns, [], threading.Event(), threading.Event()

    def piece(self, name, seconds=0.0):
        def work():
            self.begun.set()
            assert self.go.wait(DEADLINE)
            time.sleep(seconds)
            self.done.append(name)
            return name

        return work


@pytest.fixture
def order():
    turns = Turns("test")
    made = Order(turns)
    yield made
    made.go.set()
    turns.shutdown()


def test_a_client_with_one_piece_comes_before_the_rest_of_another_clients(order):
    """Sixteen large pictures of a request, or of a client's requests, would else come first."""
    with contextlib.ExitStack() as requests:
        much, more, little = (
            requests.enter_context(order.turns.of(Caller(client, number)))
            for number, client in enumerate(("much", "much", "little"))
        )
        pending = [much(order.piece("much", 0.01))]
        assert order.begun.wait(DEADLINE)
        pending += [queue(order.piece("much", 0.01)) for queue in (much, more, much, more)]
        pending.append(little(order.piece("little")))
        order.go.set()
        concurrent.futures.wait(pending, DEADLINE)
    assert order.done[:2] == ["much", "little"]
    assert len(order.done) == 6
    assert not order.turns._accounts


def test_a_request_that_has_had_nothing_comes_before_others_of_its_client(order):
    with order.turns.of(Caller("one", 1)) as first, order.turns.of(Caller("one", 2)) as second:
        pending = [first(order.piece("first", 0.01))]
        assert order.begun.wait(DEADLINE)
        pending += [first(order.piece("first")), second(order.piece("second"))]
        order.go.set()
        concurrent.futures.wait(pending, DEADLINE)
    assert order.done == ["first", "second", "first"]


def test_nobody_saves_up_turns(order):
    """Who comes late has not less than those who are there, and so does not hold them up."""
    order.go.set()
    with order.turns.of(Caller("early")) as early:
        early(order.piece("early", 0.01)).result(DEADLINE)
        with order.turns.of(Caller("late")) as late:
            late(order.piece("late", 0.01)).result(DEADLINE)
            order.go.clear()
            order.begun.clear()
            held = late(order.piece("late"))
            assert order.begun.wait(DEADLINE)
            pending = [held, late(order.piece("late")), early(order.piece("early"))]
            order.go.set()
            concurrent.futures.wait(pending, DEADLINE)
    assert order.done == ["early", "late", "late", "early", "late"]


def test_what_is_cancelled_is_not_done_and_an_error_is_its_own(order):
    with order.turns.of(Caller("one")) as queue:
        first = queue(order.piece("first"))
        assert order.begun.wait(DEADLINE)
        left, wrong, last = queue(order.piece("left")), queue(lambda: 1 // 0), queue(order.piece("last"))
        assert left.cancel()
        order.go.set()
        with pytest.raises(ZeroDivisionError):
            wrong.result(DEADLINE)
        assert [one.result(DEADLINE) for one in (first, last)] == ["first", "last"]
    assert order.done == ["first", "last"]


def test_at_the_end_those_who_wait_are_cancelled(order):
    with order.turns.of(Caller("one")) as queue:
        first = queue(order.piece("first"))
        assert order.begun.wait(DEADLINE)
        waiting = queue(order.piece("waiting"))
        order.turns.shutdown()
        assert waiting.cancelled()
        order.go.set()
        assert first.result(DEADLINE) == "first"
