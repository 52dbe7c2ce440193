"""A body costs no more than its bytes: what is too much is refused early and in one line."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time

import httpx2
import pytest
from pydantic import ValidationError
from tests.armllm.server.conftest import DEADLINE

from armllm.server import http
from armllm.server.errors import ApiError
from armllm.server.http import _parse
from armllm.server.limits import (
    BODIES_AT_ONCE,
    HEAVY_BYTES,
    MOST_BODY_BYTES,
    MOST_BYTES_AT_ONCE,
    Limits,
    Offload,
    num_values,
)
from armllm.server.protocol.chat import ChatRequest
from armllm.server.protocol.completions import CompletionRequest
from armllm.server.protocol.tokens import EmbeddingRequest

HELLO = [{"role": "user", "content": "Hello"}]
MANY = 100_000
CASES = {
    "floats for token ids": ("completions", {"prompt": [1.5] * MANY}, "prompt[0]"),
    "empty lists of ids, then a text": ("completions", {"prompt": [[]] * 2048 + ["x"]}, "prompt"),
    "empty lists of ids": ("completions", {"prompt": [[]] * 9 + ["x"]}, "prompt[9]"),
    "texts and numbers": ("completions", {"prompt": ["x", 1] * 1024}, "prompt[1]"),
    "bad words": ("completions", {"prompt": "x", "bad_words": ["a"] * MANY}, "bad_words"),
    "stop strings": ("completions", {"prompt": "x", "stop": ["a"] * MANY}, "stop"),
    "long stop strings": ("completions", {"prompt": "x", "stop": ["a" * 9000] * 9}, "stop"),
    "a long stop string": ("completions", {"prompt": "x", "stop": "a" * 90_000}, "stop"),
    "long bad words": ("completions", {"prompt": "x", "bad_words": ["a" * 9000] * 9}, "bad_words"),
    "biases": ("completions", {"prompt": "x", "logit_bias": {str(i): 1 for i in range(MANY)}}, "logit_bias"),
    "wrong biases": (
        "completions",
        {"prompt": "x", "logit_bias": {str(i): "" for i in range(9)}},
        "logit_bias",
    ),
    "allowed ids": ("completions", {"prompt": "x", "allowed_token_ids": [5] * MANY}, "allowed_token_ids"),
    "log-probabilities of prompts": (
        "completions",
        {"prompt": [[5] * 200] * 20, "prompt_logprobs": 20, "max_tokens": 1},
        "prompt_logprobs",
    ),
    "more digits than Python writes": (
        "completions",
        {"prompt": [5] * 20, "prompt_logprobs": 10**4300 - 1, "max_tokens": 1},
        "prompt_logprobs",
    ),
    "stop ids": ("completions", {"prompt": "x", "stop_token_ids": [5] * MANY}, "stop_token_ids"),
    "choices": ("completions", {"prompt": "x", "guided_choice": ["a"] * MANY}, "guided_choice"),
    "unknown fields": ("completions", {"prompt": "x", **{f"f{i}": 1 for i in range(MANY)}}, None),
    "messages": ("chat/completions", {"messages": [{}] * 4096}, "messages[0].role"),
    "variables": (
        "chat/completions",
        {"messages": HELLO, "chat_template_kwargs": {str(i): 1 for i in range(1025)}},
        "chat_template_kwargs",
    ),
    "many messages": ("chat/completions", {"messages": HELLO * 5000}, "messages"),
    "parts": (
        "chat/completions",
        {"messages": [{"role": "user", "content": [1] * MANY}]},
        "messages[0].content[0]",
    ),
    "documents": (
        "chat/completions",
        {"messages": HELLO, "documents": [{str(i): 1 for i in range(MANY)}]},
        "documents[0]",
    ),
    "tools": ("chat/completions", {"messages": HELLO, "tools": [{}] * MANY}, "tools[0].type"),
    "inputs": ("embeddings", {"input": [None] * MANY}, "input[0]"),
    "items": ("responses", {"input": [{}] * 4096}, "input[0].role"),
    "many items": ("responses", {"input": HELLO * 5000}, "input"),
}


@pytest.mark.parametrize("case", CASES)
def test_long_lists_are_refused_at_their_first_error(served, case):
    path, body, param = CASES[case]
    answer = served.post(f"/v1/{path}", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 2000


@pytest.mark.parametrize("values", [[1.5] * MANY, [[]] * MANY + [[1.5]], [["x"]] * MANY, [{}] * MANY])
@pytest.mark.parametrize("model", [CompletionRequest, EmbeddingRequest, ChatRequest])
def test_the_number_of_errors_does_not_grow_with_the_body(model, values):
    """Each collected error costs microseconds: of a million they held up everybody for half a minute."""
    fields = {"prompt": values, "input": values, "messages": values}
    body = {name: value for name, value in fields.items() if name in model.model_fields}
    with pytest.raises(ValidationError) as caught:
        model.model_validate(body)
    assert caught.value.error_count() < 20


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'"",', b'{"a":[1,2]},'])
def test_more_values_than_a_context_holds_are_refused_before_they_are_objects(piece):
    limits = Limits(max_model_len=1000)
    document = b'{"prompt":[' + piece * (limits.values + 1) + b"0]}"
    with pytest.raises(ApiError) as caught:
        _parse(limits, document, CompletionRequest)
    assert caught.value.status == 413
    assert "JSON values" in caught.value.message


def test_commas_and_brackets_within_strings_are_no_values():
    limits = Limits(max_model_len=1000)
    text = 'f(a[0], {"b": "c\\\\", \'d\'}),\n' * (limits.values // 4)
    document = json.dumps({"prompt": text}).encode()
    assert num_values(document) == 1
    assert _parse(limits, document, CompletionRequest).prompt == text


HEAVY = {  # nearly as large as the server reads
    "floats": b'{"prompt":[' + b"1.5," * 1_000_000 + b"1]}",
    "lists": b'{"prompt":[' + b"[]," * 1_300_000 + b"[]]}",
    "bad words": json.dumps({"prompt": "x", "bad_words": [f"w{i}" for i in range(300_000)]}).encode(),
    "biases": json.dumps({"prompt": "x", "logit_bias": {str(i): 1 for i in range(250_000)}}).encode(),
}


@pytest.mark.parametrize("kind", HEAVY)
def test_health_is_answered_while_a_heavy_body_is_read(served, monkeypatch, kind):
    """The body waits for the answer of /health, which never comes if it is read where all are served."""
    asked, answered, statuses = threading.Event(), threading.Event(), []

    def parse(*arguments):
        asked.set()
        statuses.append(answered.wait(DEADLINE))
        return _parse(*arguments)

    def send():
        headers = {"Content-Type": "application/json"}
        url = f"{served.url}/v1/completions"
        statuses.append(
            httpx2.post(url, content=HEAVY[kind], headers=headers, timeout=2 * DEADLINE).status_code
        )

    monkeypatch.setattr(http, "_parse", parse)
    sender = threading.Thread(target=send)
    sender.start()
    assert asked.wait(DEADLINE)
    assert httpx2.get(f"{served.url}/health", timeout=2 * DEADLINE).status_code == 200
    answered.set()
    sender.join()
    assert statuses in ([True, 400], [True, 413])


def test_nesting_is_limited():
    for document in (b"[" * 10**6, b'{"a":' * 10**6, b'{"prompt":' + b"[" * 300 + b"]" * 300 + b"}"):
        with pytest.raises(ApiError, match=r"JSON"):
            _parse(Limits(10**6), document, CompletionRequest)


def test_a_body_that_says_it_is_too_large_is_not_read(served):
    head = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_types_that_a_web_page_may_send_unasked_are_refused(served, kind):
    answer = httpx2.post(
        f"{served.url}/v1/completions", content=b'{"prompt":"x"}', headers={"Content-Type": kind}
    )
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "Deflate, gzip", "x" * 500])
def test_bodies_in_an_encoding_are_refused(served, encoding):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    answer = httpx2.post(f"{served.url}/v1/completions", content=b'{"prompt":"x"}', headers=headers)
    assert answer.status_code == 415
    assert f"Content-Encoding: '{encoding.lower()[:30]}" in answer.json()["error"]["message"]
    assert len(answer.content) < 400


def test_a_body_in_the_encoding_identity_is_read(served):
    body = {"prompt": "x", "max_tokens": 1}
    assert served.post("/v1/completions", body, headers={"Content-Encoding": "identity"}).status_code == 200


def test_large_bodies_take_a_fixed_amount_of_memory_together_and_small_ones_pass():
    limits = Limits(max_model_len=1 << 20)
    assert limits.body_bytes == MOST_BODY_BYTES
    large = [limits.reservation() for _ in range(MOST_BYTES_AT_ONCE // MOST_BODY_BYTES)]
    for one in large:
        one.__enter__()(MOST_BODY_BYTES)
    with limits.reservation() as take:
        take(HEAVY_BYTES)
        with pytest.raises(ApiError, match="try again") as caught:
            take(1)
    assert caught.value.status == 503
    for one in large:
        one.__exit__(None, None, None)


def test_bodies_that_are_read_at_once_have_a_limit_together():
    limits = Limits(max_model_len=100)
    with limits.reservation() as take:
        for _ in range(2):
            take(limits.body_bytes // 2)
        with pytest.raises(ApiError, match="more than"):
            take(2)
    pending = [limits.reservation() for _ in range(BODIES_AT_ONCE)]
    for one in pending:
        one.__enter__()(limits.body_bytes)
    with limits.reservation() as take, pytest.raises(ApiError) as caught:
        take(HEAVY_BYTES + 1)
    assert caught.value.status == 503
    for one in pending:
        one.__exit__(None, None, None)
    with limits.reservation() as take:
        take(limits.body_bytes)


def test_offloaded_work_is_done_one_by_one_and_what_is_cancelled_is_not_done():
    done, running, started = [], [], threading.Event()

    def work(name, seconds):
        running.append(name)
        started.set()
        time.sleep(seconds)
        assert running == [name]
        running.remove(name)
        done.append(name)

    async def main():
        offload = Offload()
        first = asyncio.ensure_future(offload.run(lambda: work("first", 0.2)))
        await asyncio.to_thread(started.wait)
        second = asyncio.ensure_future(offload.run(lambda: work("second", 0)))
        third = asyncio.ensure_future(offload.run(lambda: work("third", 0)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)

    asyncio.run(main())
    assert done == ["first", "third"]
