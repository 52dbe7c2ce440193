"""A storm of refused requests costs its sender time, and nobody else."""

from __future__ import annotations

import asyncio
import socket

import pytest

from armllm.server import refusals
from armllm.server.refusals import (
    AT_ONCE,
    BYTES,
    MOST_ADDRESSES,
    MOST_SECONDS,
    PER_SECOND,
    RefusalGuard,
    Refusals,
)


@pytest.fixture
def clock(monkeypatch):
    """clock[0]: the seconds that it is now."""
    now = [1000.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: now[0])
    return now


def test_the_first_refusals_are_free_and_then_they_have_a_rate(clock):
    one = Refusals()
    assert [one.delay("a") for _ in range(AT_ONCE)] == [0.0] * AT_ONCE
    assert one.delay("a") == pytest.approx(1 / PER_SECOND)
    assert one.delay("a") == pytest.approx(2 / PER_SECOND)
    clock[0] += 10
    assert one.delay("a", AT_ONCE * BYTES) == pytest.approx(1 / PER_SECOND)
    clock[0] += 10
    assert [one.delay("a") for _ in range(AT_ONCE)] == [0.0] * AT_ONCE


def test_no_refusal_waits_longer_than_the_limit_and_none_for_another_address(clock):
    one = Refusals()
    assert max(one.delay("a") for _ in range(10_000)) <= MOST_SECONDS
    assert one.delay("b") == 0
    assert one.delay("") == 0


def test_a_network_of_ipv6_is_one_address(clock):
    one = Refusals()
    assert max(one.delay(f"2001:db8::{index:x}") for index in range(2 * AT_ONCE)) > 0
    assert one.delay("2001:db8:0:1::1") == 0
    assert one.delay("::ffff:10.0.0.1") == one.delay("::ffff:10.0.0.2") == 0


def test_addresses_and_answers_that_wait_have_a_limit(clock):
    one = Refusals()
    for index in range(3 * MOST_ADDRESSES):
        one.delay(f"10.{index >> 16}.{index >> 8 & 255}.{index & 255}")
    assert len(one._paid_until) == MOST_ADDRESSES
    one.waiting = refusals.MOST_WAITING
    assert {one.delay("a") for _ in range(2 * AT_ONCE)} == {0.0}


def test_only_refusals_wait_and_keep_nothing_meanwhile(monkeypatch):
    """A good request of an address whose refusals wait is answered at once."""
    waiting = asyncio.Event()
    running, sent = [], []

    async def app(scope, _receive, send):
        running.append(scope["status"])
        await send({"type": "http.response.start", "status": scope["status"]})
        await send({"type": "http.response.body", "body": b""})
        running.remove(scope["status"])

    class Patient(Refusals):
        async def wait(self, address, size=0):
            assert address == "a"
            await waiting.wait()

    async def send(message):
        sent.append(message.get("status"))

    async def main():
        guard = RefusalGuard(app, Patient())
        ask = [
            asyncio.ensure_future(guard({"client": ("a", 1), "status": status}, None, send))
            for status in (400, 401, 404, 200, 499, 503)
        ]
        await asyncio.sleep(0.01)
        assert sent == [200, None, 499, None, 503, None]
        assert running == []
        waiting.set()
        await asyncio.gather(*ask)
        assert sent[6:] == [400, None, 401, None, 404, None]

    asyncio.run(main())


def test_what_is_no_http_waits_too(served, monkeypatch):
    """It would catch a connection that is read on while its refusal waits."""
    delays = iter([0.0, 0.3])
    monkeypatch.setattr(served.service.limits.refusals, "delay", lambda *_: next(delays))
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", served.port), timeout=30) as one:
            one.sendall(b"NONSENSE\r\n\r\n" * 1000)
            assert one.recv(12) == b"HTTP/1.1 400"
    assert served.service.limits.refusals.waiting == 0
