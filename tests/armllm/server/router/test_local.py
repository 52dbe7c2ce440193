"""Replicas as processes of one server: they come back, end with it, and a hopeless one ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import wait_until
from tests.armllm.server.router.conftest import CHECKS, until
from tests.armllm.server.router.test_forward import in_loop

from armllm.cli import main
from armllm.engine.placement import Share
from armllm.errors import RequestError
from armllm.server.router import local
from armllm.server.router.local import LocalReplica, LocalServer
from armllm.server.router.replica import Replicas
from armllm.server.router.run import Router, RouterOptions
from armllm.server.router.upstream import Address

# What stands for `armllm serve`: it answers its number of blocks, and ends as its first argument says.
SCRIPT = """
import http.server, os, socketserver, sys
parent, cpus, mode, *rest = sys.argv[1:]
if mode == "fails":
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if mode == "dies" and self.path == "/die":
            os._exit(1)
        body = b"" if self.path == "/health" else " ".join(rest).encode()
        if self.path == "/metrics":
            body = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="77"} 1.0\\n'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "local"
    def log_message(self, *_):
        pass
class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    def handle_error(self, *_):
        pass
uds = next(one for one in rest if one.startswith("--uds=")).partition("=")[2]
Server(uds, Handler).serve_forever()
"""


class Running:
    """A `LocalServer` of such processes in this event loop."""

    def __init__(self, folder, modes):
        replicas = Replicas(
            [Address.of(f"unix:{folder}/{index}") for index in range(len(modes))], checks=CHECKS
        )
        options = RouterOptions(log_level="warning")
        self.processes = [
            LocalReplica(replica, Share(None, {}), [mode])
            for replica, mode in zip(replicas.all, modes, strict=True)
        ]
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.replicas = replicas
        self.server = LocalServer(Router(replicas, options), options, self.url, self.processes)

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.server.serve(sockets=[self.socket]))
        await until(lambda: self.server.started or self.task.done())
        return self

    async def __aexit__(self, *_):
        self.server.should_exit = True
        await self.task
        self.socket.close()
        for process in self.processes:
            process.kill()
            process.wait(5)


@pytest.fixture(autouse=True)
def script(monkeypatch):
    monkeypatch.setattr(local, "COMMAND", [sys.executable, "-c", SCRIPT])
    monkeypatch.setattr(local, "FIRST_PAUSE", 0.01)


@in_loop
async def test_a_replica_that_ends_comes_back_with_the_cache_that_it_had(tmp_path):
    async with Running(tmp_path, ["stays", "stays"]) as one, httpx2.AsyncClient(base_url=one.url) as client:
        first = one.processes[0]._process
        first.kill()
        await until(lambda: one.processes[0]._process is not first and one.processes[0]._ready_at is not None)
        await until(lambda: len(one.replicas.well) == 2)
        pages = {(await client.get("/v1/models")).text for _ in range(4)}
        assert any("--num-gpu-blocks-override=77" in page for page in pages)
        assert not one.server.failed()


@in_loop
async def test_a_replica_that_ends_again_and_again_ends_the_server(tmp_path):
    async with Running(tmp_path, ["stays", "dies"]) as one:
        ended = 0
        while not one.task.done():
            process = one.processes[1]._process
            if process.poll() is None and one.processes[1]._ready_at is not None:
                process.kill()
                ended += 1
            await asyncio.sleep(0.02)
        assert ended >= local.MOST_QUICK
        assert one.server.status == local.ENGINE_FAILED


@in_loop
async def test_what_cannot_be_loaded_ends_the_server_before_it_listens(tmp_path):
    async with Running(tmp_path, ["stays", "fails"]) as one:
        await one.task
        assert one.server.status == 3
        assert not one.server.started


def test_a_folder_whose_sockets_have_no_name_is_refused(tmp_path, monkeypatch):
    """Each replica said it of an option that nobody had given."""
    monkeypatch.setattr(local.tempfile, "mkdtemp", lambda prefix: f"{tmp_path}/{'x' * 100}/{prefix}")
    monkeypatch.setattr(local.signal, "signal", lambda *_: None)
    with pytest.raises(RequestError, match="too long for a Unix socket"):
        local.serve_replicas(["serve", "folder"], 1, RouterOptions())


def test_replicas_get_the_flags_of_the_user(monkeypatch):
    seen = []
    monkeypatch.setattr("armllm.server.router.local.serve_replicas", lambda *one: seen.append(one) or 0)
    line = "serve folder -dp 2 --port 0 --api-key A --api-key B --max-model-len 4k --no-enable-prefix-caching"
    assert main([*line.split(), "--host", "127.0.0.1", "--dtype=float32", "--enable-log-requests"]) == 0
    ((arguments, size, options, ranks),) = seen
    assert ranks == 1
    assert (size, options.port, options.api_keys, options.host) == (2, 0, ("A", "B"), "127.0.0.1")
    assert arguments[:2] == ["serve", "folder"]
    assert sorted(arguments[2:]) == sorted(
        ["--disable-uvicorn-access-log", "--api-key=A", "--api-key=B", "--max-model-len=4000",
         "--no-enable-prefix-caching", "--dtype=float32", "--enable-log-requests"]
    )  # fmt: skip


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "--pipeline-parallel-size"])
def test_replicas_may_have_ranks(monkeypatch, flag):
    seen = []
    monkeypatch.setattr("armllm.server.router.local.serve_replicas", lambda *one: seen.append(one) or 0)
    assert main(["serve", "folder", "-dp", "2", flag, "3"]) == 0
    ((arguments, size, _, ranks),) = seen
    assert (size, ranks) == (2, 3)
    assert f"{flag}=3" in arguments


def test_replicas_whose_ranks_another_decides_are_refused(capsys):
    for backend in ("mp", "ray"):
        flags = ["-dp", "2", "-tp", "auto", "--distributed-executor-backend", backend]
        assert main(["serve", "folder", *flags]) == 2
        assert "go together" in capsys.readouterr().err


AUTO = """
import sys
from armisa import host
from armllm.cli import main
cpus = sorted(__import__("os").sched_getaffinity(0))[:2]
host.numa_nodes = lambda root: {node: (cpu,) for node, cpu in enumerate(cpus)}
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["-tp auto", "-dp 2 -tp 2"])
def test_replicas_of_the_smoke_model(start, folder, monkeypatch, flags):
    """One for each of two nodes of one CPU, which its process sees. Two ranks share this CPU."""
    monkeypatch.undo()
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("each replica needs a CPU")
    given = ("--dtype", "float32", "--served-model-name", "smoke", *flags.split())
    server = start(folder, *given, code=AUTO)
    url = server.wait_ready()
    lines = [line for line in server.lines if "tensor_parallel_size auto: " in line]
    if "auto" in flags:
        assert "auto: 2 replicas, since each of 2 ranks would read " in lines[0]

    def ask():
        return httpx2.post(f"{url}/v1/completions", json={"prompt": "A wheel", "temperature": 0}, timeout=60)

    texts = {ask().json()["choices"][0]["text"] for _ in range(4)}
    assert len(texts) == 1
    parent = psutil.Process(server.popen.pid)
    replicas = parent.children()
    assert len(replicas) == 2
    assert not set(replicas[0].cpu_affinity()) & set(replicas[1].cpu_affinity())
    replicas[0].kill()
    assert [ask().status_code for _ in range(4)] == [200] * 4
    page = lambda: httpx2.get(f"{url}/metrics").text  # noqa: E731
    wait_until(lambda: page().count("armllm:router_replica_up{") == page().count('.sock"} 1.0') == 2)
    everybody = parent.children(recursive=True)
    assert len(everybody) >= (4 if "auto" in flags else 6)
    server.popen.send_signal(signal.SIGKILL)
    server.wait()
    assert not psutil.wait_procs(everybody, 10)[1], "a replica outlived its server"
