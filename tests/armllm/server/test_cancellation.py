"""A client that goes away is dropped wherever its request is, and gives its blocks back."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import httpx2
import pytest
from tests.armllm.server.conftest import wait_until

HEADERS = "Host: x\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def sent(server, path, body):
    """A connection on which a request was sent."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\n{HEADERS}Content-Length: {len(content)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        yield connection


@pytest.fixture(scope="module")
def server(serving):
    """One sequence at a time, few tokens per step."""
    with serving({"max_num_seqs": 1, "max_num_batched_tokens": 16}) as server:
        yield server


LONG = {"prompt": [7] * 600, "max_tokens": 400, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_in_prefill_and_decode(server, path, stream):
    bodies = {
        "/v1/completions": LONG,
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True},
        "/v1/responses": {"input": "x " * 200},
    }
    with sent(server, path, bodies[path] | {"stream": stream}):
        wait_until(lambda: server.engine.stats().num_running == 1)
    server.assert_idle()


def test_in_the_queue(server):
    release = threading.Event()
    step = server.engine.llm_engine.step

    def slow():
        release.wait(0.02)
        return step()

    server.engine.llm_engine.step = slow
    try:
        with sent(server, "/v1/completions", LONG):
            wait_until(lambda: server.engine.stats().num_running == 1)
            for stream in (False, True):
                with sent(server, "/v1/completions", LONG | {"stream": stream}):
                    wait_until(lambda: server.engine.stats().num_waiting == 1)
                wait_until(lambda: server.engine.stats().num_waiting == 0)
            assert server.engine.stats().num_running == 1
    finally:
        release.set()
        server.engine.llm_engine.step = step
    server.assert_idle()


def test_with_several_prompts_and_choices(server):
    body = {"prompt": [[7] * 50, [8] * 60, [9] * 70], "n": 4, "max_tokens": 300, "ignore_eos": True}
    with sent(server, "/v1/completions", body | {"stream": True}) as connection:
        assert b"200 OK" in connection.recv(200)
        wait_until(lambda: server.engine.stats().num_waiting > 8)  # they come one after the other
    server.assert_idle()


def test_in_embeddings(server):
    with sent(server, "/v1/embeddings", {"input": [[7] * 900] * 20}):
        wait_until(lambda: server.engine.stats().num_running == 1)
    server.assert_idle()


def test_while_the_body_is_on_its_way(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\n{HEADERS}Content-Length: 100\r\n\r\n{{".encode()
        )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"\x00\xff not HTTP at all\r\n\r\n")
        assert b"400" in connection.recv(100)
    server.assert_idle()


def test_a_failing_engine_reaches_every_client(serving):
    with serving() as server:
        step, steps = server.engine.llm_engine.step, []

        def failing():
            steps.append(1)
            if len(steps) > 5:
                raise RuntimeError("out of luck")
            return step()

        server.engine.llm_engine.step = failing
        chat = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True, "max_tokens": 200}
        results = {}

        def ask(stream):
            results[stream] = server.post("/v1/chat/completions", chat | {"stream": stream})

        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results[False].status_code == 500
        assert "out of luck" in results[False].json()["error"]["message"]
        assert results[True].status_code in (200, 500)
        assert "out of luck" in results[True].text
        assert server.post("/v1/chat/completions", chat).status_code == 500

        assert httpx2.get(f"{server.url}/health").status_code == 503
