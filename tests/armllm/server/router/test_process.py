"""`armllm route` as a process: it ends at a signal, whoever is still there."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading

import httpx2
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until
from tests.armllm.server.router.conftest import Replica, begin_events, chunk

IMPATIENT = """
import sys
import armllm.server.draining
from armllm.cli import main
armllm.server.draining.PATIENCE = 0.5
sys.exit(main(sys.argv[1:]))
"""
DONE = b"data: [DONE]\n\n"
EVENT = b"data: " + b"x" * 50_000 + b"\n\n"
REQUEST = (
    b"POST /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)


@pytest.fixture
def replica():
    """A replica in a thread. ``/endless`` has no end; ``/steady`` sends until ``replica.enough`` is set."""

    async def answer(request, writer):
        begin_events(writer)
        steady = request[1] == "/steady"
        while not (steady and fake.enough) and not writer.transport.is_closing():
            chunk(writer, b"data: 1\n\n" if steady else EVENT)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            if steady:
                await asyncio.sleep(0.02)
        chunk(writer, DONE)
        writer.write(b"0\r\n\r\n")

    fake, loop = Replica(answer), asyncio.new_event_loop()
    fake.enough = False
    loop.run_until_complete(fake.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield fake
    asyncio.run_coroutine_threadsafe(fake.kill(), loop).result(DEADLINE)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE)
    loop.close()


def test_slow_readers_do_not_keep_the_process(start, replica):
    """They read a little now and then; others get the rest of their answers meanwhile."""
    router = start(replica.url, command="route", code=IMPATIENT)
    address = ("127.0.0.1", int(router.wait_ready().rsplit(":", 1)[1]))
    slow = [socket.create_connection(address, DEADLINE) for _ in range(5)]
    for one in slow:
        one.sendall(REQUEST % b"endless")
        assert one.recv(100)
    with httpx2.stream("POST", f"{router.url}/steady", json={}, timeout=DEADLINE) as answer:
        pieces = answer.iter_bytes()
        next(pieces)
        router.popen.send_signal(signal.SIGTERM)

        def closed():
            for one in slow:
                with contextlib.suppress(ConnectionError):
                    one.recv(100)
            next(pieces)
            return sum(line.startswith("armllm: closing") for line in router.lines) > 0

        wait_until(closed)
        replica.enough = True
        assert b"".join(pieces).endswith(DONE)
    assert router.wait() == 0
    assert "Traceback" not in router.stderr
    for one in slow:
        one.close()
