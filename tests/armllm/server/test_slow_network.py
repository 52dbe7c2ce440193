"""Stages and replicas at the other end of a network that is slow, loses packets, and is cut."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until
from tests.armllm.wire import FAR, NEAR, Wire

from armllm.errors import EngineError

GONE = 10.0  # seconds until a machine that does not answer has gone
BUSY = 15.0  # what a machine with other work takes longer
PROMPT = {"prompt": "A wheel left the workshop", "temperature": 0, "max_tokens": 24, "ignore_eos": True}

pytestmark = pytest.mark.slow


@pytest.fixture
def wire():
    """20 ms each way, and every fiftieth packet is lost."""
    with contextlib.ExitStack() as stack:
        try:
            wire = stack.enter_context(Wire(delay=0.02, loss=0.02))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine allows no network namespaces with a TUN device: {error}")
        yield wire


class Client:
    """Asks a server at a Unix socket, which needs no network."""

    def __init__(self, path):
        self.path = str(path)
        transport = httpx2.HTTPTransport(uds=self.path)
        self.http = httpx2.Client(transport=transport, base_url="http://localhost", timeout=DEADLINE)

    def answer(self):
        response = self.http.post("/v1/completions", json=PROMPT)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]["text"]

    def health(self):
        """A status; None if nobody listens."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(DEADLINE)
            connection.connect(self.path)
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            words = connection.recv(1 << 12).split()
            return int(words[1]) if words else None
        return None

    def num_well(self):
        """How many replicas of a router are well; None if nobody listens."""
        if self.health() is None:
            return None
        lines = self.http.get("/metrics").text.splitlines()
        return sum(one.startswith("armllm:router_replica_up{") and one.endswith(" 1.0") for one in lines)

    def stream(self):
        """Begin a long answer: the thread that reads it, and what has come."""
        begun, found = threading.Event(), {"bytes": b""}

        def read():
            body = PROMPT | {"stream": True, "max_tokens": 400}
            with self.http.stream("POST", "/v1/completions", json=body) as response:
                for piece in response.iter_bytes():
                    found["bytes"] += piece
                    begun.set()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        assert begun.wait(DEADLINE)
        return thread, found


@pytest.fixture
def client(tmp_path):
    """A client of the server that listens at the file ``socket``."""
    client = Client(tmp_path / "socket")
    with client.http:
        yield client


@pytest.fixture(scope="module")
def text(serving):
    """What one process answers, asked without a network between."""
    with serving() as served:
        return served.post("/v1/completions", PROMPT | {"model": "smoke"}).json()["choices"][0]["text"]


def wait_well(client, *servers):
    wait_until(lambda: client.health() == 200 or any(one.popen.poll() is not None for one in servers))
    assert client.health() == 200, [one.stderr for one in servers]


def test_stages_have_the_tokens_of_one_process_and_end_when_the_network_is_cut(
    wire, client, text, start, folder
):
    variables = {"ARMLLM_NODES_KEY": "a key for tests, which is long", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    flags = [folder, "--dtype=float32", "-pp=2", "--nnodes=2", f"--master-addr={NEAR}"]
    first = start(*flags, f"--uds={client.path}", within=wire.near, **variables)
    second = start(*flags, "--node-rank=1", "--headless", within=wire.far, **variables)
    wait_well(client, first, second)
    assert [client.answer() for _ in range(3)] == [text] * 3
    assert wire.lost
    engines = psutil.Process(first.popen.pid).children(recursive=True)

    thread, found = client.stream()
    wire.is_cut = True
    cut, statuses = time.monotonic(), []
    while first.popen.poll() is None:
        statuses.append(client.health())
        assert time.monotonic() - cut < GONE + BUSY, "it goes on without its other stage"
        time.sleep(0.02)
    well = statuses.count(200)
    assert set(statuses[well:]) <= {503, None}, "it was well again"
    thread.join(DEADLINE)
    assert f"rank 1 on {FAR} has gone".encode() in found["bytes"]
    assert f"rank 1 on {FAR} has gone" in first.lines[-1]
    assert first.wait() == EngineError.status
    assert second.wait() == EngineError.status
    assert "machine 0 has gone" in second.lines[-1]
    assert not psutil.wait_procs(engines, DEADLINE)[1]
    assert time.monotonic() - cut < GONE + 2 * BUSY


def test_a_router_asks_others_while_the_network_is_cut(wire, client, text, start, folder):
    flags = [folder, "--dtype=float32"]
    far = start(*flags, "--host=0.0.0.0", "--port=8000", f'--allowed-hosts=["{FAR}"]', within=wire.far)
    start(*flags, f"--uds={client.path}.local")
    wait_until(lambda: far.url or far.popen.poll() is not None)
    assert far.url, far.stderr
    urls = [f"http://{FAR}:8000", f"unix:{client.path}.local"]
    router = start(*urls, "--policy=round_robin", f"--uds={client.path}", command="route", within=wire.near)
    wait_until(lambda: client.num_well() == 2)
    assert [client.answer() for _ in range(6)] == [text] * 6
    assert wire.lost

    streams = [client.stream() for _ in range(4)]
    wire.is_cut = True
    assert [client.answer() for _ in range(4)] == [text] * 4, "what had not begun was not asked of the other"
    assert client.health() == 200
    for thread, _ in streams:
        thread.join(DEADLINE)
        assert not thread.is_alive(), "a stream that began at the far end waits for ever"
    ends = [b"replica_lost" in found["bytes"] for _, found in streams]
    assert ends.count(True) in (1, 2), (ends, router.stderr)
    assert all(found["bytes"].endswith(b"data: [DONE]\n\n") for _, found in streams)
    assert f"http://{FAR}:8000 is out" in router.stderr

    wire.is_cut = False
    wait_until(lambda: client.num_well() == 2)
    assert [client.answer() for _ in range(4)] == [text] * 4
