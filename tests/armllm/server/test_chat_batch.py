"""/v1/chat/completions/batch answers each conversation as /v1/chat/completions would."""

from __future__ import annotations

import pytest
from tests.armllm.server.conftest import wait_until

PATH = "/v1/chat/completions/batch"
CONVERSATIONS = [
    [{"role": "user", "content": "A wheel left the workshop"}],
    [
        {"role": "user", "content": "Bread"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "y"},
    ],
    [{"role": "user", "content": "Hello"}],
]
FIELDS = {"model": "smoke", "temperature": 0, "max_tokens": 6, "logprobs": True, "return_token_ids": True}


def test_each_conversation_has_the_answer_that_it_has_alone(served):
    """It would catch answers in the order of their ends, a shared parameter that is lost, a wrong count."""
    batch = served.post(PATH, {**FIELDS, "messages": CONVERSATIONS, "request_id": "mine"}).json()
    alone = [
        served.post("/v1/chat/completions", {**FIELDS, "messages": messages}).json()
        for messages in CONVERSATIONS
    ]
    assert (batch["id"], batch["object"], batch["model"]) == ("chatcmpl-mine", "chat.completion", "smoke")
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, (other,) in zip(batch["choices"], (one["choices"] for one in alone), strict=True):
        ours, theirs = (found.pop("logprobs")["content"] for found in (choice, other))
        assert {**choice, "index": 0} == other
        assert [one["logprob"] for one in ours] == pytest.approx([one["logprob"] for one in theirs], abs=1e-3)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(one["usage"][name] for one in alone)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [[]]}, "messages[0]", "at least 1"),
        ({"messages": CONVERSATIONS[0]}, "messages[0]", "list"),
        ({"messages": [CONVERSATIONS[0], [{"content": "x"}]]}, "messages[1][0].role", "required"),
        ({"messages": [CONVERSATIONS[0] * 9] * 500}, "messages", "at most 4096 messages together"),
        ({"messages": [CONVERSATIONS[0]] * 2049}, "messages", "at most 2048"),
        ({"n": 2}, "n", "repeat a conversation"),
        ({"stream": True}, "stream", "/v1/chat/completions has it"),
        ({"stream_options": {}}, "stream_options", "only streams"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "text only"),
        ({"tool_choice": "auto"}, "tool_choice", "text only"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "/v1/chat/completions has it"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
        ({"temperature": -1}, "temperature", "-1"),
        ({"tokens": 2}, "tokens", "unknown parameter"),
    ],
)
def test_what_is_wrong_is_said(served, fields, param, words):
    answer = served.post(PATH, {"messages": CONVERSATIONS, "max_tokens": 1, **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_the_conversation_that_does_not_fit_is_named_and_the_others_are_dropped(served):
    long = [{"role": "user", "content": "a " * 5000}]
    error = served.post(PATH, {"messages": [CONVERSATIONS[0], long]}).json()["error"]
    assert error["param"] == "messages[1]"
    assert "max_model_len" in error["message"]
    wait_until(lambda: served.engine.stats().num_running == 0)
    assert served.post(PATH, {"messages": CONVERSATIONS, "model": "nobody"}).status_code == 404
