"""Bodies of requests that are nearly right, or not at all, by a random generator."""

from __future__ import annotations

import json

from armllm.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from armllm.server.protocol.chat import ChatBatchRequest, ChatRequest
from armllm.server.protocol.completions import CompletionRequest
from armllm.server.protocol.responses import ResponsesRequest
from armllm.server.protocol.scoring import ClassifyRequest, PoolingRequest, RerankRequest, ScoreRequest
from armllm.server.protocol.tokens import DetokenizeRequest, EmbeddingRequest, TokenizeRequest

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
