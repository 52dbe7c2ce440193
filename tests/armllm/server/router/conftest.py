"""Replicas that do as a test wants, and a router in front of them, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx2
import pytest

from armllm.server.router.replica import HealthChecks, Replicas
from armllm.server.router.run import Router, RouterOptions, RouterServer
from armllm.server.router.upstream import Address

CHECKS = HealthChecks(interval=0.1, timeout=5, failures=2, stalled=0.3, pause=0.3)
DEADLINE = 30.0
METRICS = """# HELP vllm:prompt_tokens_total Tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="a\\"b"} %d.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{le="1.0"} 2.0
vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 3.0
vllm:e2e_request_latency_seconds_count 3.0
vllm:e2e_request_latency_seconds_sum 4.5
"""


class Replica:
    """A small HTTP server. ``answer(request, writer)`` answers everything but /health and /metrics.

    A request is (method, path, headers, body). hung: it accepts and reads, and never answers.
    """

    def __init__(self, answer=None):
        self.answer = answer or self.echo
        self.requests = []
        self.gone = 0  # clients that left before their answer's end
        self.hung = False
        self.health = 200
        self.port = 0
        self._writers = set()

    async def echo(self, request, writer):
        body = json.dumps(
            {"port": self.port, "path": request[1], "body": request[3].decode("latin-1")}
        ).encode()
        respond(writer, 200, body)

    async def start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def kill(self):
        self.server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader, writer):
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                headers = [tuple(line.split(": ", 1)) for line in head[1:] if line]
                length = int(dict(headers).get("content-length", 0))
                request = (method, path, headers, await reader.readexactly(length))
                if self.hung:
                    await asyncio.sleep(DEADLINE)
                if path == "/health":
                    respond(writer, self.health)
                elif path == "/metrics":
                    respond(writer, 200, (METRICS % self.port).encode())
                else:
                    self.requests.append(request)
                    work = asyncio.ensure_future(self.answer(request, writer))
                    watch = asyncio.ensure_future(reader.read(1))
                    await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
                    if not work.done():
                        self.gone += 1
                        work.cancel()
                        return
                    if not watch.cancel():
                        return
                    with contextlib.suppress(asyncio.CancelledError):
                        await watch
                    await work
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort() if self.hung else writer.close()


def respond(writer, status, body=b"", headers=()):
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers)
    writer.write(f"HTTP/1.1 {status} X\r\n{fields}content-length: {len(body)}\r\n\r\n".encode() + body)


def begin_events(writer):
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")


def chunk(writer, data):
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


class Cluster:
    """Replicas, their router, and a client of it."""

    def __init__(self, replicas, policy, checks, **options):
        self.fakes = replicas
        self._checks = checks
        self._policy = policy
        self._options = options

    async def __aenter__(self):
        for fake in self.fakes:
            await fake.start()
        self.replicas = Replicas([Address.of(fake.url) for fake in self.fakes], self._policy, self._checks)
        options = RouterOptions(log_level="warning", **self._options)
        self.router = Router(self.replicas, options)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = RouterServer(self.router, options, self.url)
        self.task = asyncio.ensure_future(self.server.serve(sockets=[self.socket]))
        await until(lambda: self.server.started)
        limits = httpx2.Limits(max_connections=200)
        self.client = httpx2.AsyncClient(base_url=self.url, timeout=DEADLINE, limits=limits)
        return self

    async def __aexit__(self, *_):
        await self.client.aclose()
        self.server.should_exit = True
        await asyncio.wait_for(self.task, DEADLINE)
        assert all(one.num_running == 0 and one.outstanding == 0 for one in self.replicas.all)
        for fake in self.fakes:
            await fake.kill()

    async def complete(self, prompt="A", **fields):
        return await self.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4, **fields})


async def until(condition):
    for _ in range(int(DEADLINE / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


@pytest.fixture
def cluster():
    """cluster(*replicas, policy, checks, **options of the router)."""

    def make(*replicas, policy="cache_aware", checks=CHECKS, **options):
        return Cluster(list(replicas) or [Replica(), Replica()], policy, checks, **options)

    return make
