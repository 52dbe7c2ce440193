"""Whatever stands in a body, the answer is a status below 500, and the engine goes on."""

from __future__ import annotations

import asyncio
import json
import random
import time

import httpx2
import pytest

from armllm.cli import main
from armllm.errors import RequestError
from armllm.server import batch
from armllm.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from armllm.server.protocol.chat import ChatBatchRequest, ChatRequest
from armllm.server.protocol.completions import CompletionRequest
from armllm.server.protocol.responses import ResponsesRequest
from armllm.server.protocol.scoring import ClassifyRequest, PoolingRequest, RerankRequest, ScoreRequest
from armllm.server.protocol.tokens import DetokenizeRequest, EmbeddingRequest, TokenizeRequest

CPU_SECONDS = 5.0  # of the server and its engine, for one of these bodies
HELLO = [{"role": "user", "content": "Hello"}]
ADAPTERS = {
    "/v1/load_lora_adapter": (LoadAdapterRequest, {"lora_name": "a", "lora_path": "/"}),
    "/v1/unload_lora_adapter": (UnloadAdapterRequest, {"lora_name": "a"}),
}
ENDPOINTS = {
    "/v1/completions": (CompletionRequest, {"prompt": "Hello", "max_tokens": 3}),
    "/v1/chat/completions": (ChatRequest, {"messages": HELLO, "max_tokens": 3}),
    "/v1/chat/completions/batch": (ChatBatchRequest, {"messages": [HELLO, HELLO], "max_tokens": 3}),
    "/v1/responses": (ResponsesRequest, {"input": "Hello", "max_output_tokens": 3}),
    "/v1/embeddings": (EmbeddingRequest, {"input": "Hello"}),
    "/score": (ScoreRequest, {"text_1": "Hello", "text_2": ["a", "b"]}),
    "/rerank": (RerankRequest, {"query": "Hello", "documents": ["a", "b"]}),
    "/v1/rerank": (RerankRequest, {"query": "Hello", "documents": ["a", "b"], "top_n": 1}),
    "/pooling": (PoolingRequest, {"input": "Hello"}),
    "/classify": (ClassifyRequest, {"input": "Hello"}),
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
PLACES = [
    "/dev/zero",
    "/proc/self/mem",
    "/dev/stdin",
    "a\x00b",
    "..",
    "x/" * 2000,
    "a" * 300,
    "~",
    "https://x/y",
]
BODY_TYPES = [
    "multipart/form-data; boundary=x",
    "multipart/mixed",
    "application/x-www-form-urlencoded",
    "x" * 999,
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


def items(rng):
    """A conversation of /v1/responses: messages, thoughts, calls and results, each nearly right."""
    texts = ("Hello", "", "{", [{"type": "input_text", "text": "a"}], [{"type": "input_image"}], [], None)
    fields = {
        "role": ("user", "assistant", "developer", "system", "tool", 5),
        "content": (*texts, [{"type": "reasoning_text", "text": "a"}]),
        "call_id": ("c", "", None),
        "name": ("f", ""),
        "arguments": ("{}", "{", "[" * 5000, '{"a":1e999}', "null"),
        "output": texts,
        "summary": ([], [{}], "a"),
        "encrypted_content": (None, "a"),
    }
    of_kind = {
        "message": ("role", "content"),
        "reasoning": ("summary", "content"),
        "function_call": ("call_id", "name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "item_reference": ("call_id",),
        None: ("role", "content"),
    }
    found = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(list(of_kind))
        names = [*of_kind[kind], *rng.sample(sorted(fields), rng.random() < 0.1)]
        item = {name: rng.choice(fields[name][: 1 if rng.random() < 0.6 else None]) for name in names}
        found.append(item if kind is None else {"type": kind, **item})
    return found


def tool(rng):
    """A function for /v1/responses and /v1/chat/completions, and what is none."""
    schema = rng.choice(({}, {"type": "object"}, {"$ref": "#"}, {"type": "object", "required": 5}, None, []))
    function = {"name": rng.choice(("f", "", "a b", "f" * 999)), "parameters": schema}
    return rng.choice(
        (
            {"type": "function", **function},
            {"type": "function", "function": function},
            {"type": "web_search"},
            {},
        )
    )


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
    ("lora_path", "lora_name"): lambda rng: rng.choice(PLACES + TEXTS),
    ("documents", "text_1", "text_2", "text_pair", "queries"): lambda rng: rng.choice(
        (
            rng.sample(TEXTS, rng.randint(1, 4)),
            [[5, 6], [7]],
            [5, -1],
            {"content": []},
            [{"text": rng.choice(TEXTS)}, "a"],
            [{"text": None}],
            ["a"] * 2049,
            rng.choice(TEXTS),
        )
    ),
    ("input",): lambda rng: rng.choice((items(rng), items(rng), rng.sample(TEXTS, 2), [[5, 6], [7]], "a")),
    ("tools",): lambda rng: [tool(rng) for _ in range(rng.randrange(3))],
    ("tool_choice",): lambda rng: rng.choice(("none", "auto", "required", "f", tool(rng))),
    ("text", "response_format"): lambda rng: {
        rng.choice(("format", "type", "verbosity")): rng.choice(
            (
                {"type": "json_schema", "name": "a", "schema": {"$ref": "#"}},
                {"type": "json_schema", "schema": {"type": ["string", 5]}},
                {"type": "json_object"},
                {"type": "text"},
                "json_object",
            )
        )
    },
    ("reasoning",): lambda rng: {
        rng.choice(("effort", "summary")): rng.choice(("low", "none", "auto", "", None))
    },
    ("encoding_format",): lambda rng: rng.choice(("float", "base64", "bytes", "bytes_only", "int8")),
    ("embed_dtype", "endianness", "task"): lambda rng: rng.choice(
        ("float32", "bfloat16", "fp8_e4m3", "big", "native", "embed", "classify", "token_embed", "score")
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


def test_no_line_of_a_batch_ends_the_others(folder, tmp_path, capsys):
    """It would catch an error that ends the command, and the answers of other lines with it."""
    rng = random.Random(5)  # noqa: S311 - test data
    lines = []
    for number in range(120):
        path = rng.choice(list(ENDPOINTS))
        model, base = ENDPOINTS[path]
        fields = {name: plausible(rng, name) for name in rng.sample(sorted(model.model_fields), 2)}
        odd = value(rng) if rng.random() < 0.1 else {**base, **fields, "model": "smoke"}
        sent = odd if isinstance(odd, dict) else base
        lines.append({"custom_id": str(number), "method": "POST", "url": path, "body": sent})
    lines += [{**lines[0], "method": value(rng), "url": value(rng)} for _ in range(20)]
    texts = [json.dumps(line) for line in lines]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(texts))
    command = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(folder)]
    assert main([*command, "--served-model-name", "smoke", "--max-model-len", "64"]) in (1, 2), (
        capsys.readouterr()
    )
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(answers) == len(texts), capsys.readouterr().err
    for line, answer in zip(texts, answers, strict=True):
        assert answer["response"]["status_code"] < 500, (line, answer)


def damaged(rng, text):
    """A line of a batch in which a few characters were changed, lost, doubled or put in."""
    odd = (
        "",
        '"',
        "{",
        "]",
        ",",
        ":",
        "\\",
        "\\ud800",
        "\0",
        "\ufeff",
        "\r",
        "9" * 5000,
        "NaN",
        "[" * 100_000,
    )
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text))
        length = rng.choice((0, 1, 1, 30))
        text = text[:at] + rng.choice((*odd, text[:at], text[at:])) + text[at + length :]
    return text.replace("\n", "")


def test_no_damage_to_a_file_of_requests_ends_the_command_with_a_traceback(folder, tmp_path, capsys):
    """A line that can't be read is refused by its number; the others are answered."""
    rng = random.Random(8)  # noqa: S311 - test data
    kept, refusals = [], []
    for number in range(1500):
        path = rng.choice(list(ENDPOINTS))
        line = {"custom_id": str(number), "method": "POST", "url": path, "body": ENDPOINTS[path][1]}
        text = damaged(rng, json.dumps(line))
        try:
            batch._parse(text, 1)
        except RequestError as error:
            refusals.append(str(error))
        else:
            kept.append(text)
    for refusal in refusals:
        assert refusal.startswith("--input-file, line 1: "), refusal
        assert "\n" not in refusal, refusal
        assert len(refusal) < 500, refusal
    assert len(kept) > 100
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(kept))
    command = ["run-batch", "-i", str(source), "-o", str(target), "--model", str(folder)]
    assert main([*command, "--max-model-len", "64"]) == 1, capsys.readouterr().err
    answers = [json.loads(text) for text in target.read_text().splitlines()]
    assert len(answers) == len(kept)
    assert {answer["response"]["status_code"] for answer in answers} <= {200, 400, 404, 413}
    source.write_bytes(b"{}\n\xff\xfe")
    assert main(command) == 2
    assert str(source) in capsys.readouterr().err


def test_a_line_of_a_batch_that_is_just_not_too_deep_to_be_read_has_an_answer():
    deep = []
    for _ in range(10_000):
        deep = [deep]
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": deep}}
    answer = asyncio.run(batch._answer(None, line))
    assert answer["response"]["status_code"] == 400
    assert answer["error"]["message"] == "the body is nested too deeply"


@pytest.mark.parametrize(
    "line", ["[", "1", "[]", "{}", '{"body":' * 5000, "9" * 9999, "null", '"\\ud800"', "\x00"]
)
def test_a_line_of_a_batch_that_is_no_request_is_named(folder, tmp_path, capsys, line):
    (tmp_path / "in.jsonl").write_text(line)
    command = [
        "run-batch",
        "-i",
        str(tmp_path / "in.jsonl"),
        "-o",
        str(tmp_path / "out"),
        "--model",
        str(folder),
    ]
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "line 1" in message
    assert len(message) < 500
