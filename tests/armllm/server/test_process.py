"""`armllm serve` as a process: it starts, drains and stops as a container's first process must."""

from __future__ import annotations

import json
import runpy
import signal
import socket
import threading

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until

from armllm.errors import RequestError
from armllm.server import run
from armllm.server.service import ServerOptions

BODY = {"prompt": [7] * 20, "max_tokens": 900, "ignore_eos": True, "stream": True}


def reading(url, results, body=None):
    """Start to read a stream; the thread ends with it, and the list gets its bytes and what went wrong."""

    def read():
        got = b""
        try:
            with httpx2.stream(
                "POST", f"{url}/v1/completions", json=body or BODY, timeout=DEADLINE
            ) as answer:
                for piece in answer.iter_bytes():
                    got += piece
                    results["begun"] = True
            results["end"] = "done"
        except httpx2.HTTPError as error:
            results["end"] = type(error).__name__
        results["bytes"] = got

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: "begun" in results or "end" in results)
    return thread


def test_five_lines_tell_what_was_found_and_a_signal_drains(start, folder):
    server = start(folder, "--dtype", "float32", "--served-model-name", "smoke", "--max_model_len", "1K")
    url = server.wait_ready()
    lines = [line for line in server.lines if not line[:4].isdigit()]
    assert len(lines) == 5
    for word, line in zip(("armllm", "threads", "kernels", "KV cache", "smoke"), lines, strict=True):
        assert word in line
    assert httpx2.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == 1024
    results = {}
    thread = reading(url, results)
    server.popen.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping after" in server.stderr)
    thread.join(DEADLINE)
    assert results["end"] == "done"
    assert results["bytes"].endswith(b"data: [DONE]\n\n")
    assert server.wait() == 0
    assert "Traceback" not in server.stderr


def test_a_second_signal_stops_at_once(start, folder):
    server = start(folder, "--dtype", "float32")
    results = {}
    thread = reading(server.wait_ready(), results, BODY | {"n": 64, "temperature": 1})
    server.popen.send_signal(signal.SIGTERM)
    wait_until(lambda: "stopping after" in server.stderr)
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait() == 128 + signal.SIGTERM
    thread.join(DEADLINE)
    assert b"[DONE]" not in results["bytes"]


IMPATIENT = """
import sys
import armllm.server.draining
from armllm.cli import main
armllm.server.draining.PATIENCE = 0.5
sys.exit(main(sys.argv[1:]))
"""
HALF = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 500\r\n\r\n{"
)


def test_a_client_that_says_no_more_does_not_keep_the_process(start, folder):
    """A half-sent body: the drain waits for what is computed, then closes it."""
    server = start(folder, "--dtype", "float32", code=IMPATIENT)
    results = {}
    thread = reading(server.wait_ready(), results)
    address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
    with socket.create_connection(address) as silent:
        silent.sendall(HALF)
        server.popen.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    thread.join(DEADLINE)
    assert results["bytes"].endswith(b"data: [DONE]\n\n")
    assert "closing 1 connections" in server.stderr
    assert "Traceback" not in server.stderr


def test_a_killed_server_leaves_no_client_waiting(start, folder):
    server = start(folder, "--dtype", "float32")
    results = {}
    thread = reading(server.wait_ready(), results)
    server.popen.kill()
    thread.join(DEADLINE)
    assert results["end"] != "done"


# COMMAND starts the engine's process, with the number of its socket as the last argument
FAILING = """
import sys
from armllm.cli import main
from armllm.server import engine_process
engine_process.COMMAND = [sys.executable, "-c", '''
import sys
from armllm.api.llm_engine import LLMEngine
from armllm.server import engine_host
steps, step = [], LLMEngine.step
def failing(self):
    steps.append(1)
    if len(steps) > 20:
        raise RuntimeError("out of luck")
    return step(self)
LLMEngine.step = failing
engine_host.main(int(sys.argv[1]))
''']
sys.exit(main(sys.argv[1:]))
"""


def test_a_failed_engine_ends_the_server_with_an_error(start, folder):
    server = start(folder, "--dtype", "float32", code=FAILING)
    results = {}
    thread = reading(server.wait_ready(), results)
    thread.join(DEADLINE)
    assert b"out of luck" in results["bytes"]
    assert server.wait() == 70
    assert "out of luck" in server.lines[-1]
    assert "Traceback" not in server.stderr


def engine_of(server):
    """The process that `armllm serve` has put its engine into."""
    (engine,) = psutil.Process(server.popen.pid).children()
    return engine


def test_an_engine_that_is_killed_ends_the_server_with_an_error(start, folder):
    """As the kernel does where memory is short."""
    server = start(folder, "--dtype", "float32")
    results = {}
    thread = reading(server.wait_ready(), results)
    engine_of(server).kill()
    thread.join(DEADLINE)
    assert b"signal 9" in results["bytes"]
    assert server.wait() == 70
    assert "the engine failed: its process was ended by signal 9" in server.lines[-1]
    assert "Traceback" not in server.stderr


def test_the_engine_goes_with_its_server_and_ignores_signals_that_drain(start, folder):
    server = start(folder, "--dtype", "float32")
    results = {}
    thread = reading(server.wait_ready(), results)
    engine = engine_of(server)
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal and systemd send them to both processes
        engine.send_signal(number)
    server.popen.send_signal(signal.SIGTERM)
    thread.join(DEADLINE)
    assert results["bytes"].endswith(b"data: [DONE]\n\n")
    assert server.wait() == 0
    assert not engine.is_running()
    server = start(folder, "--dtype", "float32")
    server.wait_ready()
    engine = engine_of(server)
    server.popen.kill()
    wait_until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)


def test_a_port_in_use_is_said_before_anything_is_loaded(start, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = start(folder, "--port", port)
        assert server.wait() == 2
    assert f"127.0.0.1:{port}" in server.stderr
    assert "Address already in use" in server.stderr
    assert server.stderr.count("\n") == 1


def test_a_signal_while_loading_stops(start, folder):
    server = start(folder, "--dtype", "float32")
    # handlers are there before torch is imported; before that, Python's own end the process as well
    server.popen.send_signal(signal.SIGTERM)
    assert server.wait() in (128 + signal.SIGTERM, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], "/nowhere"),
        (["FOLDER", "--max-modellen", "5"], "--max-model-len"),
        (["FOLDER", "--pipeline-parallel-size", "99"], "pipeline_parallel_size must be at most 64"),
        (["FOLDER", "-pp", "2", "-tp", "2"], "do not go together"),
        (["FOLDER", "--tool-call-parser", "pythonic"], "hermes"),
        (["FOLDER", "--enable-auto-tool-choice"], "--tool-call-parser"),
        (["FOLDER", "--reasoning-parser", "granite"], "deepseek_r1"),
        (["FOLDER", "--host", "256.1.1.1"], "256.1.1.1"),
        (["FOLDER", "--port", "99999"], "--port"),
        (["FOLDER", "--chat-template", "/nowhere.jinja"], "/nowhere.jinja"),
        (["FOLDER", "--chat-template", "{% if %}"], "can't be compiled"),
        (["FOLDER", "--max-model-len", "many"], "many"),
        (["FOLDER", "--dtype", "int3"], "int3"),
        (["FOLDER", "--allowed-origins", "x"], "--allowed-origins"),
        (["FOLDER", "--allowed-hosts", "[1]"], "--allowed-hosts"),
        (["FOLDER", "--uvicorn-log-level", "loud"], "--uvicorn-log-level"),
        (["FOLDER", "--model", "FOLDER"], "MODEL"),
        ([], "MODEL"),
    ],
)
def test_wrong_usage_is_one_line(folder, capsys, arguments, words):
    from armllm.cli import main  # noqa: PLC0415

    given = [str(folder) if argument == "FOLDER" else argument for argument in arguments]
    old = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = main(["serve", *given])
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    shown = capsys.readouterr()
    assert status in (1, 2)
    assert words in shown.err
    assert shown.err.startswith("armllm: error: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_the_module_that_guides_for_vllm_start_is_there(capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # of this process
    monkeypatch.setattr("sys.argv", ["api_server", "--model", "x", "--port", "99999"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("armllm.entrypoints.openai.api_server", run_name="__main__")
    assert ended.value.code == 2
    assert "--port" in capsys.readouterr().err


def test_a_unix_socket_serves_and_is_removed(start, folder, tmp_path):
    path = tmp_path / "socket"
    server = start(folder, "--dtype", "float32", "--uds", path)
    wait_until(lambda: path.exists() and "serving" in server.stderr)
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
        assert json.loads(client.get("http://x/version").text)["version"]
    server.popen.send_signal(signal.SIGINT)
    assert server.wait() == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root_path": "llm"}, "--root-path must be like /prefix"),
        ({"root_path": "/llm/"}, "--root-path must be like /prefix"),
    ],
)
def test_wrong_prefixes_are_said_before_a_model_is_loaded(options, message):
    with pytest.raises(RequestError) as caught:
        ServerOptions(served_model_names=("x",), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "host", "address"),
    [
        ((), None, "127.0.0.1"),
        (("secret",), None, "0.0.0.0"),  # noqa: S104 - with a key
        ((), "::", "::"),
        (("secret",), "127.0.0.1", "127.0.0.1"),
    ],
)
def test_without_a_key_a_server_is_there_for_its_own_machine_only(monkeypatch, keys, host, address):
    class BoundError(Exception):
        pass

    def bound(asked, *_):
        raise BoundError(asked)

    monkeypatch.setattr(run, "bound", bound)
    monkeypatch.setattr(run, "allow_many_connections", lambda: None)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    with pytest.raises(BoundError, match=f"^{address}$"):
        run.serve("x", {}, ServerOptions(served_model_names=("x",), api_keys=keys), host=host, port=0)
