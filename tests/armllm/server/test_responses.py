"""Functions that /v1/responses calls, by OpenAI's client: whole, streamed, and given back with results."""

from __future__ import annotations

import json

import openai
import pytest

from armllm.server.events import Reasoning, Text
from armllm.server.protocol.responses import ResponsesRequest
from armllm.server.response_items import Items
from armllm.server.response_request import as_chat

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": CITY, "strict": True},
    {"type": "function", "name": "now", "description": "The time."},
]
SAID = (
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
ASKED = {"model": "smoke", "input": "Hello", "max_output_tokens": 300}
TWO_CALLS = {**ASKED, "tools": TOOLS, "extra_body": {"structured_outputs": {"choice": [SAID]}}}
EXPECTED = [("weather", '{"city": "Köln"}'), ("now", "{}")]


@pytest.fixture(scope="module")
def client(served):
    with served.openai() as client:
        yield client


def calls_of(response):
    return [(item.name, item.arguments) for item in response.output if item.type == "function_call"]


def test_calls_are_items_of_their_own(client):
    response = client.responses.create(**TWO_CALLS)
    assert response.output_text == "Let me look."
    assert calls_of(response) == EXPECTED
    assert [item.status for item in response.output] == ["completed"] * 3
    assert len({item.call_id for item in response.output[1:]}) == 2
    assert response.tools[0].name == "weather"
    assert (response.tool_choice, response.parallel_tool_calls) == ("auto", True)
    one = client.responses.create(parallel_tool_calls=False, **TWO_CALLS)
    assert calls_of(one) == EXPECTED[:1]
    assert one.parallel_tool_calls is False


def test_a_stream_tells_calls_in_openais_events(client):
    with client.responses.stream(**TWO_CALLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert calls_of(final) == EXPECTED
    kinds = [event.type for event in events]
    about = [kind for kind in dict.fromkeys(kinds) if "function_call" in kind or "output_item" in kind]
    assert about == [
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = {1: "", 2: ""}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            deltas[event.output_index] += event.delta
            assert event.item_id == final.output[event.output_index].id
    done = [event.arguments for event in events if event.type == "response.function_call_arguments.done"]
    assert list(deltas.values()) == done == [arguments for _, arguments in EXPECTED]
    added = [event.item for event in events if event.type == "response.output_item.added"]
    assert [(item.type, item.status) for item in added] == [
        ("message", "in_progress"),
        ("function_call", "in_progress"),
        ("function_call", "in_progress"),
    ]
    assert added[1].arguments == ""


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_forced_call_has_valid_arguments(client, choice):
    asked = {**ASKED, "tools": TOOLS[:1], "tool_choice": choice, "temperature": 0.5}
    response = client.responses.create(parallel_tool_calls=False, **asked)
    ((name, arguments),) = calls_of(response)
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Köln", "Bonn")
    short = client.responses.create(**{**asked, "max_output_tokens": 4})
    assert short.status == "incomplete"
    assert [item.status for item in short.output] == ["incomplete"] * len(short.output)


def test_calls_can_be_given_back_with_their_results(client):
    """The model's turn is one message for the chat template, with its calls; each result is another."""
    response = client.responses.create(**TWO_CALLS)
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    thought["content"] = [{"type": "reasoning_text", "text": "Hm."}]
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "rain"}
        for item in response.output[1:]
    ]
    results[1]["output"] = [{"type": "input_text", "text": "noon"}]
    turns = [{"role": "user", "content": "Hello"}, thought, *response.output, *results]
    again = client.responses.create(**{**TWO_CALLS, "input": turns, "tool_choice": "none"})
    assert again.output_text
    document = [item if isinstance(item, dict) else item.to_dict() for item in turns]
    messages = as_chat(ResponsesRequest(input=document, tools=TOOLS)).messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1].content == "Let me look."
    assert messages[1].reasoning == "Hm."
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in messages[1].tool_calls]
    assert calls == EXPECTED
    assert [message.content for message in messages[2:]] == ["rain", "noon"]
    assert messages[3].tool_call_id == messages[1].tool_calls[1]["id"]


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "web_search.* only functions"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name", "pattern"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "'x'"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"input": [{"type": "computer_call"}]}, "input[0]", "function_call_output"),
        ({"input": [{"type": "function_call_output", "call_id": "a"}]}, "input[0].output", "required"),
        (
            {"input": [{"type": "reasoning", "encrypted_content": "x"}]},
            "input[0].encrypted_content",
            "None",
        ),
        (
            {"tools": [{**TOOLS[0], "parameters": {"type": "nix"}}], "tool_choice": "required"},
            "tools",
            "nix",
        ),
    ],
)
def test_what_cannot_be_done_is_said(client, changes, param, message):
    with pytest.raises(openai.BadRequestError, match=message) as refused:
        client.responses.create(**{**ASKED, **changes})
    assert refused.value.param == param


@pytest.mark.parametrize("with_reasoning", [True, False])
def test_thoughts_are_items_or_left_out(with_reasoning):
    items = Items(one_call=False, with_reasoning=with_reasoning)
    for event in (Reasoning("Hm."), Text("Yes"), Text(".")):
        items.add(event)
    items.close(cut=False)
    texts = [(item["type"], item["content"][0]["text"]) for item in items.all]
    assert texts == [("reasoning", "Hm.")] * with_reasoning + [("message", "Yes.")]
