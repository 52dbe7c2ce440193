"""Bad requests get OpenAI's error object with the field's name, and never a 500."""

from __future__ import annotations

import json

import httpx2
import pytest

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "words"),
    [
        ("/v1/completions", b"", 400, None, "not JSON"),
        ("/score", {"text_1": [1], "text_2": [[10**9]]}, 400, "text_2", "vocabulary"),
        ("/score", {"text_1": "x", "text_2": ["x"] * 2048}, 400, "text_2", "2048"),
        ("/score", {"data_1": "x", "data_2": "x " * 99_000}, 400, "data_2", "max_model_len"),
        ("/rerank", {"query": "x", "documents": ["x"] * 2048}, 400, "documents", "2048"),
        ("/rerank", {"query": "x", "documents": ["x " * 99_000]}, 400, "documents", "max_model_len"),
        ("/v1/completions", b'{"prompt": "x"', 400, None, "not JSON"),
        ("/v1/completions", b'{"prompt": "\xff\xfe"}', 400, None, "not JSON"),
        ("/v1/completions", b'{"prompt": "\\ud800"}', 400, None, "not JSON"),
        ("/v1/completions", b"[" * 100_000, 400, None, "not JSON"),
        ("/v1/completions", b"[]", 400, None, "object"),
        ("/v1/completions", b'{"prompt": "x", "temperature": NaN}', 400, "temperature", "finite"),
        ("/v1/completions", {}, 400, "prompt", "required"),
        ("/v1/completions", {"prompt": []}, 400, "prompt", "empty"),
        ("/v1/completions", {"prompt": [[]]}, 400, "prompt", "empty"),
        ("/v1/completions", {"prompt": [10**12]}, 400, "prompt", "vocabulary"),
        ("/v1/completions", {"prompt": [-1]}, 400, "prompt", "vocabulary"),
        ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt[1]", "integer"),
        ("/v1/completions", {"prompt": "x", "best_of": 2}, 400, "best_of", "not supported"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "suffix", "not supported"),
        ("/v1/completions", {"prompt": "x", "max_tokens": -1}, 400, "max_tokens", "greater"),
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens", "echo"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 99}, 400, "min_tokens", "max_tokens"),
        ("/v1/completions", {"prompt": "x", "top_k": -7}, 400, "top_k", "top_k"),
        ("/v1/completions", {"prompt": "x", "min_p": 2}, 400, "min_p", "min_p"),
        ("/v1/completions", {"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty", "at least"),
        ("/v1/completions", {"prompt": "x", "presence_penalty": 9}, 400, "presence_penalty", "at most"),
        ("/v1/completions", {"prompt": "x", "frequency_penalty": -9}, 400, "frequency_penalty", "at least"),
        ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs", "20"),
        ("/v1/completions", {"prompt": "x", "stop": [""]}, 400, "stop", "non-empty"),
        ("/v1/completions", {"prompt": "x", "stop_token_ids": [10**6]}, 400, "stop_token_ids", "vocabulary"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias", "token id"),
        ("/v1/completions", {"prompt": "x", "logit_bias": {"1": 101}}, 400, "logit_bias", "at most"),
        ("/v1/completions", {"prompt": "x", "priority": 1}, 400, "priority", "scheduling-policy"),
        ("/v1/completions", {"prompt": "x", "guided_regex": "(" * 9}, 400, "guided_regex", "regex"),
        ("/v1/completions", {"prompt": "x", "guided_json": "{"}, 400, "guided_json", "JSON"),
        ("/v1/completions", {"prompt": "x", "guided_choice": []}, 400, "guided_choice", "non-empty"),
        (
            "/v1/completions",
            {"prompt": "x", "guided_regex": "a", "response_format": {"type": "json_object"}},
            400,
            "response_format",
            "exclude",
        ),
        (
            "/v1/completions",
            {"prompt": "x", "response_format": {"type": "xml"}},
            400,
            "response_format",
            "xml",
        ),
        ("/v1/completions", {"prompt": "x", "stream_options": {}}, 400, "stream_options", "stream"),
        ("/v1/completions", {"prompt": "x" * 9000}, 400, "prompt", "max_model_len"),
        ("/v1/completions", {"prompt": "x " * 2_000_000}, 400, "prompt", "characters"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages", "at least 1"),
        ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages[0].role", "required"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": 5}]},
            400,
            "messages[0].content",
            "",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            400,
            "messages",
            "image_url",
        ),
        ("/v1/chat/completions", {"messages": HELLO, "tool_choice": "auto"}, 400, "tool_choice", "tools"),
        ("/v1/chat/completions", {"messages": HELLO, "top_logprobs": 2}, 400, "top_logprobs", "logprobs"),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "chat_template_kwargs": {"messages": []}},
            400,
            "chat_template_kwargs",
            "messages",
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "chat_template_kwargs": {"self": 1}},
            400,
            "chat_template_kwargs",
            "self",
        ),
        ("/v1/completions", {"prompt": "x", "temperature": 1e39}, 400, "temperature", "at most"),
        ("/v1/completions", {"prompt": "x", "seed": 2**63}, 400, "seed", "at most"),
        ("/v1/completions", {"prompt": "x", "seed": -(2**63) - 1}, 400, "seed", "at least"),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
                ]
            },
            400,
            "messages",
            "not JSON",
        ),
        ("/v1/responses", {"input": []}, 400, "input", "empty"),
        (
            "/v1/responses",
            {"input": "x", "previous_response_id": "r"},
            400,
            "previous_response_id",
            "supported",
        ),
        ("/v1/embeddings", {"input": []}, 400, "input", "empty"),
        ("/v1/embeddings", {"input": "x", "dimensions": 10**6}, 400, "dimensions", "dimensions"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 9000}]},
            400,
            "messages",
            "max_model_len",
        ),
        (
            "/v1/chat/completions",
            {"messages": HELLO, "max_completion_tokens": 5000},
            400,
            "max_completion_tokens",
            "max_model_len",
        ),
        ("/v1/responses", {"input": "x" * 9000}, 400, "input", "max_model_len"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 5000}, 400, "max_output_tokens", "5000"),
        ("/v1/embeddings", {"input": "x" * 9000}, 400, "input", "max_model_len"),
        ("/v1/completions", {"prompt": "x", "request_id": "a\nb"}, 400, "request_id", "pattern"),
        ("/v1/completions", b" " * (5 << 20), 413, None, "more than 42"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant"}], "continue_final_message": True},
            400,
            "continue_final_message",
            "last message",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "x", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}]},
            400,
            "messages",
            "not JSON",
        ),
        ("/tokenize", {}, 400, None, "prompt or messages"),
        ("/detokenize", {"tokens": [10**6]}, 400, "tokens", "vocabulary"),
        ("/nowhere", {}, 404, None, "/nowhere"),
        ("/health", {}, 405, None, "Method"),
    ],
)
def test_the_error_says_which_field_is_wrong(served, path, body, status, param, words):  # noqa: PLR0917
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = httpx2.post(served.url + path, content=content, headers=headers, timeout=60)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("name", ["user", "metadata", "store", "service_tier", "safety_identifier"])
def test_fields_without_effect_are_accepted(served, name):
    body = {"messages": HELLO, "max_tokens": 1, name: {"any": "thing"}}
    assert served.post("/v1/chat/completions", body).status_code == 200


def test_null_is_as_good_as_absent(served):
    fields = ("temperature", "top_p", "n", "stop", "seed", "tools", "best_of", "logit_bias", "stream_options")
    body = {"messages": HELLO, "max_tokens": 1, **dict.fromkeys(fields)}
    assert served.post("/v1/chat/completions", body).status_code == 200


def test_a_template_that_raises_or_is_broken_is_said(serving, tmp_path, folder):
    import shutil  # noqa: PLC0415

    broken = shutil.copytree(folder, tmp_path / "model")
    (broken / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with serving(folder=broken) as server:
        answer = server.post("/v1/chat/completions", {"messages": HELLO})
        assert answer.status_code == 400
        assert "roles must alternate" in answer.json()["error"]["message"]
    (broken / "chat_template.jinja").write_text("{% if %}")
    with serving(folder=broken) as server:
        answer = server.post("/v1/chat/completions", {"messages": HELLO})
        assert answer.status_code == 500
        assert "can't be compiled" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_key_is_asked_for_and_compared(serving):
    with serving(api_keys=("secret", "other")) as server:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
            answer = server.post("/v1/chat/completions", {"messages": HELLO}, headers=header)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
        assert httpx2.get(f"{server.url}/v1/models").status_code == 401
        assert server.post("/tokenize", {"prompt": "x"}).status_code == 401
        with server.openai(api_key="other") as client:
            assert client.models.list().data[0].id == "smoke"
        for public in ("/health", "/version", "/metrics", "/"):
            assert httpx2.get(server.url + public).status_code == 200
