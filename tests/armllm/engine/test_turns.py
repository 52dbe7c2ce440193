"""Who gives much work does not hold up those who give little."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time

import pytest
from tests.armllm.models.picture_models import PAD, picture, save

from armllm import AsyncLLM, SamplingParams
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


def test_one_picture_is_answered_before_the_others_of_a_large_request(tmp_path):
    """They came first, and the reader has one process: catches a request that keeps it until its end."""
    save(tmp_path)
    engine = AsyncLLM(str(tmp_path), dtype="float32", skip_tokenizer_init=True)
    processor = engine.llm_engine.processor
    reader = processor.reader
    done, begun, go = [], threading.Event(), threading.Event()

    class Noting:
        def read_each(self, pictures):
            for one, found in zip(pictures, reader.read_each(pictures), strict=True):
                if one is not found:  # it was not read before
                    begun.set()
                    assert go.wait(DEADLINE)
                    done.append(len(pictures))
                yield found

    async def ask(count, client):
        params = SamplingParams(temperature=0, max_tokens=2)
        prompt = {
            "prompt_token_ids": [PAD] * count,
            "multi_modal_data": {"image": [picture(1, 33, 20)] * count},
        }
        return [one async for one in engine.generate(prompt, params, client, caller=Caller(client, count))]

    async def both():
        large = asyncio.ensure_future(ask(8, "large"))
        await asyncio.to_thread(begun.wait, DEADLINE)
        small = asyncio.ensure_future(ask(1, "small"))
        while len(engine._pictures._accounts) < 2:  # noqa: ASYNC110 - a few turns of this loop
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        go.set()
        return await asyncio.gather(large, small)

    processor.reader = Noting()
    try:
        answers = asyncio.run(asyncio.wait_for(both(), 120))
    finally:
        go.set()
        processor.reader = reader
        engine.shutdown()
    assert [one[-1].finished for one in answers] == [True, True]
    assert done == [8, 1, *[8] * 7]
