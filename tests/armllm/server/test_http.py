"""Answers are written without holding up everybody else."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from armllm.server.http import EventStream, json_response, long_json_response

VECTOR = [index / 7 for index in range(2000)]


async def longest_wait(work):
    """What ``work`` returns, and the CPU seconds that it takes of the event loop at once."""
    longest = 0.0

    async def watch():
        nonlocal longest
        while True:
            started = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - started)

    watcher = asyncio.ensure_future(watch())
    await asyncio.sleep(0)
    result = await work
    watcher.cancel()
    return result, longest


@pytest.mark.parametrize(
    "document", [{}, {"a": [], "é": None}, {"data": [{"x": [0.5, 1e-7]}, "\x00\u2028", []], "n": 1}]
)
def test_a_long_answer_is_the_same_json(document):
    answer = asyncio.run(long_json_response(document))
    assert answer.body == json_response(document).body
    assert json.loads(answer.body) == document


def test_a_long_answer_lets_others_run():
    answer, longest = asyncio.run(longest_wait(long_json_response({"data": [VECTOR] * 1000})))
    started = time.thread_time()
    whole = json_response({"data": [VECTOR] * 1000})
    assert longest < (time.thread_time() - started) / 4
    assert answer.body == whole.body


def test_a_stream_whose_events_are_all_there_lets_others_run():
    async def events():
        for _ in range(1000):
            yield b"x" * 1000

    async def send(_message):
        pass

    async def receive():
        await asyncio.sleep(60)

    async def answer():
        turns = 0

        async def count():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counter = asyncio.ensure_future(count())
        stream = EventStream(b"x", events(), lambda _: b"")
        await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        counter.cancel()
        return turns

    assert asyncio.run(answer()) > 10
