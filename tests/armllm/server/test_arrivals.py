"""An address that leaves many connections has its next ones wait a moment; nothing of theirs is lost."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import threading
import time

import pytest
from tests.armllm.server.conftest import wait_until

from armllm.server import arrivals, connection, run
from armllm.server.limits import Limits
from armllm.server.refusals import AT_ONCE, Refusals

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
KEPT = HEALTH.replace(b"Connection: close\r\n", b"")
HALF = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
)


@pytest.fixture
def refusals(served, monkeypatch):
    """The refusals of a server, as if none had been."""
    fresh = Refusals()
    monkeypatch.setattr(served.service.limits, "refusals", fresh)
    return fresh


@pytest.fixture
def hold(refusals, monkeypatch):
    """hold(seconds): let every new connection wait so long."""

    def hold(seconds):
        monkeypatch.setattr(arrivals, "HELD_SECONDS", seconds)
        monkeypatch.setattr(refusals, "owed", lambda _: seconds)

    return hold


def connect(server, sent):
    one = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    one.sendall(sent)
    return one


def rest(one):
    with one, one.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize("sent", [HALF, b"", HALF[:20], KEPT + HALF])
def test_who_leaves_before_the_answer_is_counted(served, refusals, monkeypatch, sent):
    """It would catch a storm of half requests that costs its sender nothing."""
    monkeypatch.setattr("armllm.server.refusals.PER_SECOND", 1.0)  # else a slow machine forgets in time
    for _ in range(AT_ONCE + 20):
        with connect(served, sent) as one:
            if sent.startswith(HEALTH[:12]):
                one.recv(1)
    wait_until(lambda: refusals.owed("127.0.0.1") > 0)


def test_who_is_answered_is_not_counted(served, refusals):
    for _ in range(AT_ONCE + 20):
        assert rest(connect(served, HEALTH)).startswith(b"HTTP/1.1 200")
    assert refusals.owed("127.0.0.1") == 0


def test_what_a_held_connection_sends_is_answered(served, hold):
    hold(0.05)
    for sent in (HEALTH, HEALTH[:9], b""):
        with connect(served, sent) as one:
            time.sleep(0.1)
            one.sendall(HEALTH[len(sent) :])
            assert rest(one).startswith(b"HTTP/1.1 200")


def test_of_a_held_connection_nothing_is_read(served, hold, monkeypatch):
    """It would catch memory and time that each piece of a body takes before anybody knows who stays."""
    read = []
    received = connection.LimitedProtocol.data_received
    monkeypatch.setattr(
        connection.LimitedProtocol,
        "data_received",
        lambda self, data: (read.append(time.monotonic()), received(self, data)),
    )
    hold(0.4)
    started = time.monotonic()
    with connect(served, b"GET / HTTP/1.1\r\nX: ") as one:
        for _ in range(60):
            one.sendall(b"a" * 10_000)
            time.sleep(0.001)
        assert rest(one).startswith(b"HTTP/1.1 431")
    assert read[0] >= started + 0.2


def test_a_held_connection_that_is_reset_is_let_go(served, hold, monkeypatch):
    made = []
    monkeypatch.setattr(connection.LimitedProtocol, "__init__", lambda *_, **__: made.append(1))
    hold(0.5)
    with connect(served, HALF) as one:
        wait_until(lambda: served.service.limits.open)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not served.service.limits.open)
    assert not made


def test_a_connection_that_leaves_while_it_is_held_is_never_read(served, hold, monkeypatch):
    made = []
    monkeypatch.setattr(connection.LimitedProtocol, "__init__", lambda *_, **__: made.append(1))
    hold(0.5)
    limits = served.service.limits
    connect(served, HALF).close()
    wait_until(lambda: not limits.open)
    time.sleep(0.6)
    assert not made


def test_a_held_connection_gives_its_place_to_a_new_one(served, hold, monkeypatch):
    """It would catch held connections that nothing counts, which take all open files."""
    monkeypatch.setattr("armllm.server.limits.MAX_CONNECTIONS", 2)
    hold(0.5)
    held = [connect(served, HEALTH) for _ in range(3)]
    with pytest.raises(ConnectionResetError):
        rest(held[0])
    assert all(rest(one).startswith(b"HTTP/1.1 200") for one in held[1:])


def test_who_has_left_before_it_is_accepted_costs_nothing_more(monkeypatch):
    """It would catch a queue of dead connections that keeps the others of the event loop waiting."""
    monkeypatch.setattr(arrivals, "ACCEPTED_AT_ONCE", 4)
    limits = Limits(64)
    left, served = [], []
    monkeypatch.setattr(limits.refusals, "delay", left.append)

    async def accept():
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            arriving = arrivals.Arrivals(listening, limits, served.append)
            arriving.start()
            for _ in range(10):
                with socket.create_connection(listening.getsockname()) as one:
                    one.sendall(HALF)
            with socket.create_connection(listening.getsockname()) as good:
                good.sendall(HEALTH)
                turns = 0
                while not served:
                    turns += 1
                    await asyncio.sleep(0.001)
                arriving.stop()
                assert turns > 2
                with served[0] as found:
                    assert found.recv(100) == HEALTH

    asyncio.run(accept())
    assert left == ["127.0.0.1"] * 10


def test_without_files_it_accepts_later(served, monkeypatch):
    """It would catch a loop that tries again without end, and a server that accepts no more."""
    monkeypatch.setattr(arrivals, "RETRY_SECONDS", 0.1)
    said = []
    monkeypatch.setattr(arrivals.logger, "warning", lambda *words: said.append(words))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    one = socket.socket()
    resource.setrlimit(resource.RLIMIT_NOFILE, (one.fileno(), before[1]))
    try:
        one.settimeout(30)
        one.connect(("127.0.0.1", served.port))
        one.sendall(HEALTH)
        wait_until(lambda: said)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert rest(one).startswith(b"HTTP/1.1 200")
    assert len(said) < 100


def test_who_leaves_a_proxy_holds_up_no_other_client_of_it(served, refusals, monkeypatch, tmp_path):
    """It would catch clients that leave their streams, for which a router would be held."""
    path = str(tmp_path / "socket")
    monkeypatch.setattr(arrivals, "HELD_SECONDS", 30.0)

    def connect_to_socket(sent):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(2)
        one.connect(path)
        one.sendall(sent)
        return one

    server = arrivals.ArrivalsServer(served.server.config, served.service.limits)
    with run.bound("", 0, path) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            for _ in range(AT_ONCE + 20):
                connect_to_socket(HALF).close()
            wait_until(lambda: not served.service.limits.open)
            refusals.delay("", 100 << 20)
            assert rest(connect_to_socket(HEALTH)).startswith(b"HTTP/1.1 200")
        finally:
            server.should_exit = True
            thread.join(30)
