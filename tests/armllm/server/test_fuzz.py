"""Whatever stands in a body, the answer is a status below 500, and the engine goes on."""

from __future__ import annotations

import json
import random
import time

import httpx2
import pytest
from tests.armllm.server.odd_bodies import ADAPTERS, BODY_TYPES, ENDPOINTS, body, plausible

CPU_SECONDS = 5.0  # of the server and its engine, for one of these bodies


@pytest.fixture(scope="module")
def server(serving):
    options = {"max_model_len": 64, "max_num_seqs": 32, "enable_lora": True}
    with serving(options, may_change_adapters=True) as server:
        yield server
        server.assert_idle()


def attack(server, seeds):
    statuses = set()
    endpoints = {**ENDPOINTS, **ADAPTERS}
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for seed in seeds:
            rng = random.Random(seed)  # noqa: S311 - test data
            path = rng.choice(list(endpoints))
            content = body(rng, *endpoints[path])
            media_type = rng.choice(BODY_TYPES) if rng.random() < 0.02 else "application/json"
            began = time.process_time()
            answer = client.post(path, content=content, headers={"Content-Type": media_type})
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (seed, path, content, answer.text)
            assert time.process_time() - began < CPU_SECONDS, (seed, path, content)
            if answer.status_code >= 400:
                message = answer.json()["error"]["message"]
                assert "\n" not in message, (seed, message)
        assert statuses >= {200, 400}
        assert client.get("/health").status_code == 200
        hello = {"prompt": "Hello", "max_tokens": 3}
        assert client.post("/v1/completions", json=hello).status_code == 200


def test_no_body_ends_in_a_server_error(server):
    attack(server, range(200))


@pytest.mark.slow
def test_no_body_of_many_ends_in_a_server_error(server):
    attack(server, range(1000, 11_000))


def multipart(rng):
    """Files and fields as forms send them, some of them damaged."""
    pieces = [
        b"--x\r\n",
        b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n',
        b"Content-Type: application/json\r\n",
        b"Content-Transfer-Encoding: base64\r\n",
        b"X: " + b"a" * 70_000,
        b"\r\n",
        json.dumps({"prompt": "Hello"}).encode(),
        b"\0\xff\r\n",
        b"\r\n--x--\r\n",
        b"--",
    ]
    return b"".join(rng.choices(pieces, k=rng.randrange(12)))


def test_no_form_ends_in_a_server_error(server):
    """No endpoint takes forms, which other servers have for files."""
    rng = random.Random(3)  # noqa: S311 - test data
    paths = [*ENDPOINTS, "/v1/files", "/v1/audio/transcriptions", "/v1/images/edits"]
    types = [
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "multipart/form-data; boundary=" + "y" * 999,
    ]
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for _ in range(40):
            path, sent = rng.choice(paths), multipart(rng)
            answer = client.post(path, content=sent, headers={"Content-Type": rng.choice(types)})
            assert answer.status_code == (415 if path in ENDPOINTS else 404), (path, sent, answer.text)
            assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("seed", range(8))
def test_no_stream_ends_without_its_end(server, seed):
    """Errors within a stream come as events, and the connection ends as it should."""
    rng = random.Random(seed)  # noqa: S311 - test data
    fields = {
        name: plausible(rng, name) for name in rng.sample(("stop", "bad_words", "logit_bias", "min_p"), 2)
    }
    body = {"prompt": "Hello", "max_tokens": 9, "stream": True, "seed": seed, **fields}
    answer = httpx2.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400 or answer.text.endswith("data: [DONE]\n\n")
