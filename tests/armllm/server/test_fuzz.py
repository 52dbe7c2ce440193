"""Whatever stands in a body, the answer is a status below 500, and the engine goes on."""

from __future__ import annotations

import json
import random

import httpx2
import pytest

from armllm.server.protocol.chat import ChatRequest
from armllm.server.protocol.completions import CompletionRequest
from armllm.server.protocol.responses import ResponsesRequest
from armllm.server.protocol.tokens import DetokenizeRequest, EmbeddingRequest, TokenizeRequest

HELLO = [{"role": "user", "content": "Hello"}]
ENDPOINTS = {
    "/v1/completions": (CompletionRequest, {"prompt": "Hello", "max_tokens": 3}),
    "/v1/chat/completions": (ChatRequest, {"messages": HELLO, "max_tokens": 3}),
    "/v1/responses": (ResponsesRequest, {"input": "Hello", "max_output_tokens": 3}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "Hello"}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hello"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [1]}),
}
NUMBERS = [
    *(0, 1, -1, 2, 5, 63, 64, 127, 128, 129, 400, 10**6, 2**31, 2**63, 2**64, 10**40, 10**300, -(2**63) - 1),
    *(0.0, -0.0, 1e-45, 1e-40, 1e-6, 0.3, 1.0, 1.5, 2.0, 100.0, 3.4e38, 1e39, 1e308, -1e39),
    *(float("nan"), float("inf"), -float("inf")),
]
TEXTS = [
    "",
    " ",
    "a",
    "the",
    "\x00",
    "\ufffd",
    "\u200b",
    "é\u0301",
    "😀",
    "{",
    "[" * 99,
    "a" * 3000,
    "</s>",
    "auto",
    "none",
]
GRAMMARS = [
    "a*",
    "(a{1,1000}){1,1000}",
    "start: start",
    'start: "a"',
    "root ::= root",
    "start: /(?=a)/",
    '{"type":"string","pattern":"("}',
    '{"$ref":"#"}',
    '{"enum":[]}',
    '{"allOf":[{"$ref":"#"},{"$ref":"#"}]}',
]


def value(rng, depth=0):
    """Something that JSON can hold, and Python's JSON beside it."""
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return rng.choice(GRAMMARS)
    if kind == 4:
        return rng.choice((None, True, False, [], {}))
    if kind < 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    names = [
        "type",
        "json",
        "regex",
        "self",
        "role",
        "content",
        "text",
        "name",
        "function",
        "schema",
        "5",
        "7",
        "x",
    ]
    return {rng.choice(names): value(rng, depth + 1) for _ in range(rng.randrange(4))}


PLAUSIBLE = {
    ("stop", "bad_words", "guided_choice"): lambda rng: rng.sample(TEXTS, rng.randint(1, 4)),
    ("stop_token_ids", "allowed_token_ids"): lambda rng: [rng.randrange(-1, 300) for _ in range(3)],
    ("logit_bias",): lambda rng: {str(rng.randrange(300)): rng.choice((-100, 100, 0.5, 1e39))},
    ("guided_regex", "guided_grammar", "guided_json"): lambda rng: rng.choice(GRAMMARS),
    ("structured_outputs", "chat_template_kwargs"): lambda rng: {
        rng.choice(("json", "regex", "grammar", "self", "x")): rng.choice(GRAMMARS)
    },
    ("stream", "echo", "ignore_eos", "logprobs", "return_token_ids"): lambda rng: rng.choice(
        (True, False, 1)
    ),
}


def plausible(rng, name):
    """A value of the right type more often than not, so that requests reach the engine."""
    make = next((make for names, make in PLAUSIBLE.items() if name in names), None)
    return rng.choice(NUMBERS) if make is None else make(rng)


def body(rng, model, base):
    """A good request with a few fields of any kind."""
    found = dict(base)
    for name in rng.sample(sorted(model.model_fields), rng.randint(1, 2)):
        found[name] = plausible(rng, name) if rng.random() < 0.7 else value(rng)
    text = json.dumps(found)
    if rng.random() < 0.05:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice('{}[],:"\\e9-') + text[at + 1 :]
    return text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def server(serving):
    with serving({"max_model_len": 64, "max_num_seqs": 32}) as server:
        yield server
        server.assert_idle()


def attack(server, seeds):
    headers = {"Content-Type": "application/json"}
    statuses = set()
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        for seed in seeds:
            rng = random.Random(seed)  # noqa: S311 - test data
            path = rng.choice(list(ENDPOINTS))
            content = body(rng, *ENDPOINTS[path])
            answer = client.post(path, content=content)
            statuses.add(answer.status_code)
            assert answer.status_code < 500, (seed, path, content, answer.text)
            if answer.status_code >= 400:
                message = answer.json()["error"]["message"]
                assert "\n" not in message, (seed, message)
        assert statuses >= {200, 400}
        assert client.get("/health").status_code == 200
        assert client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 3}).status_code == 200


def test_no_body_ends_in_a_server_error(server):
    attack(server, range(120))


@pytest.mark.slow
def test_no_body_of_many_ends_in_a_server_error(server):
    attack(server, range(1000, 11_000))


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
