"""OpenAI's own client is served as it expects: every API, with the same words streamed and not."""

from __future__ import annotations

import json

import openai
import pytest

from armllm.smoke.passages import load_passages

PASSAGES = load_passages()
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "size": {"enum": [1, 2, 3]}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Köln", "Bonn"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "maxProperties": 0}}},
]


@pytest.fixture
def client(served):
    with served.openai() as client:
        yield client


def test_completions_recite_streamed_and_not(client):
    passage = PASSAGES[0]
    plain = client.completions.create(model="smoke", prompt=passage.prompt, max_tokens=500, temperature=0)
    assert plain.choices[0].text == passage.text
    assert plain.choices[0].finish_reason == "stop"
    assert plain.usage.completion_tokens == len(passage.token_ids)
    chunks = list(
        client.completions.create(
            model="smoke",
            prompt=passage.prompt,
            max_tokens=500,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == passage.text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens


def test_several_prompts_with_several_choices_come_in_order(client):
    prompts = [passage.prompt for passage in PASSAGES[:3]]
    answer = client.completions.create(
        model="smoke", prompt=prompts, n=2, max_tokens=6, temperature=0.0001, seed=5
    )
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        assert PASSAGES[choice.index // 2].text.startswith(choice.text)
        assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 36


def test_echo_scores_the_prompt_as_evaluation_harnesses_ask(client):
    passage = PASSAGES[0]
    choice = client.completions.create(
        model="smoke", prompt=passage.prompt, max_tokens=0, echo=True, logprobs=1
    ).choices[0]
    scores = choice.logprobs
    assert choice.text == passage.prompt
    assert "".join(scores.tokens) == passage.prompt
    assert scores.token_logprobs[0] is None
    assert all(score <= 0 for score in scores.token_logprobs[1:])
    for token, offset in zip(scores.tokens, scores.text_offset, strict=True):
        assert passage.prompt[offset:].startswith(token)


def test_logprobs_of_a_chat_have_bytes_that_join_to_the_text(client):
    asked = {
        "model": "smoke",
        "messages": HELLO,
        "max_tokens": 40,
        "logprobs": True,
        "top_logprobs": 3,
        "extra_body": {"guided_regex": "Grüße 東京 😀"},
    }
    choice = client.chat.completions.create(**asked).choices[0]
    found = choice.logprobs.content
    assert bytes(byte for token in found for byte in token.bytes).decode() == choice.message.content
    assert all(len(token.top_logprobs) == 3 for token in found)
    chunks = list(client.chat.completions.create(stream=True, **asked))
    streamed = [
        token for chunk in chunks if chunk.choices[0].logprobs for token in chunk.choices[0].logprobs.content
    ]
    assert [token.bytes for token in streamed] == [token.bytes for token in found]


def test_chat_gives_the_same_words_streamed_and_not(client):
    asked = {"model": "alias", "messages": HELLO, "max_tokens": 20, "seed": 7, "n": 2}
    plain = client.chat.completions.create(**asked)
    texts = {0: "", 1: ""}
    roles = []
    for chunk in client.chat.completions.create(stream=True, **asked):
        choice = chunk.choices[0]
        roles.append(choice.delta.role)
        texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in plain.choices}
    assert roles.count("assistant") == 2
    assert plain.choices[0].message.role == "assistant"
    assert plain.usage.completion_tokens == 40


def test_a_schema_is_kept_to(client):
    wanted = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}
    choice = client.chat.completions.create(
        model="smoke", messages=HELLO, max_tokens=200, response_format=wanted
    ).choices[0]
    assert choice.finish_reason == "stop"
    thing = json.loads(choice.message.content)
    assert thing.keys() == {"name", "size"}
    assert thing["size"] in (1, 2, 3)


def test_the_clients_own_parsing_of_a_schema_works(client):
    import pydantic  # noqa: PLC0415

    class Thing(pydantic.BaseModel):
        size: int = pydantic.Field(ge=1, le=3)

    parsed = client.chat.completions.parse(
        model="smoke", messages=HELLO, max_tokens=100, response_format=Thing
    )
    assert parsed.choices[0].message.parsed.size in (1, 2, 3)


def calls_in(stream):
    """What a stream's deltas add up to, and its finish_reason."""
    calls, text, reason = {}, "", None
    for chunk in stream:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for piece in choice.delta.tool_calls or []:
            if piece.id is not None:
                calls[piece.index] = [piece.function.name, ""]
            calls[piece.index][1] += piece.function.arguments
    return text, [tuple(call) for call in calls.values()], reason


@pytest.mark.parametrize(
    ("choice", "reason"),
    [({"type": "function", "function": {"name": "weather"}}, "stop"), ("required", "tool_calls")],
)
def test_a_forced_call_has_valid_arguments(client, choice, reason):
    asked = {"model": "smoke", "messages": HELLO, "tools": TOOLS[:1], "tool_choice": choice, "seed": 1}
    asked |= {"max_tokens": 300, "temperature": 0.5}
    answer = client.chat.completions.create(**asked).choices[0]
    first = answer.message.tool_calls[0]
    assert first.function.name == "weather"
    assert json.loads(first.function.arguments)["city"] in ("Köln", "Bonn")
    if answer.finish_reason != "length":  # the model may like to call again and again
        assert answer.finish_reason == reason
    _, calls, _ = calls_in(client.chat.completions.create(stream=True, **asked))
    assert calls == [(call.function.name, call.function.arguments) for call in answer.message.tool_calls]


@pytest.mark.parametrize("parameters", [{}, {"parameters": {}}])
@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "now"}}, "required"])
def test_a_function_without_parameters_is_called_without_arguments(client, choice, parameters):
    """Else the model may make some up."""
    tools = [{"type": "function", "function": {"name": "now", **parameters}}]
    answer = client.chat.completions.create(
        model="smoke", messages=HELLO, tools=tools, tool_choice=choice, parallel_tool_calls=False, seed=2
    )
    assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == ["{}"]


def test_an_automatic_call_is_found_in_the_text(client):
    said = 'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    said += '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    asked = {
        "model": "smoke",
        "messages": HELLO,
        "tools": TOOLS,
        "max_tokens": 300,
        "extra_body": {"structured_outputs": {"choice": [said]}},
    }
    expected = [("weather", '{"city": "Köln"}'), ("now", "{}")]
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.message.content == "Let me look."
    assert [(c.function.name, c.function.arguments) for c in answer.message.tool_calls] == expected
    assert answer.finish_reason == "tool_calls"
    streamed = calls_in(client.chat.completions.create(stream=True, **asked))
    assert streamed == ("Let me look.", expected, "tool_calls")
    one = client.chat.completions.create(parallel_tool_calls=False, **asked).choices[0]
    assert len(one.message.tool_calls) == 1
    # the answer can be given back with the tool's result
    messages = [*HELLO, answer.message.to_dict(), {"role": "tool", "tool_call_id": "x", "content": "rain"}]
    again = client.chat.completions.create(model="smoke", messages=messages, max_tokens=2)
    assert again.choices[0].finish_reason == "length"


def test_no_tool_is_called_when_none_may_be(client):
    asked = {"model": "smoke", "messages": HELLO, "tools": TOOLS, "tool_choice": "none", "max_tokens": 5}
    answer = client.chat.completions.create(**asked).choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.reasoning is answer.message.reasoning_content is None  # there in every message
    assert answer.finish_reason == "length"


def test_responses_streamed_and_not(client):
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["Grüße"]}}}
    plain = client.responses.create(model="smoke", input="Hello", text=form)
    assert plain.output_text == '"Grüße"'
    assert plain.status == "completed"
    with client.responses.stream(
        model="smoke", instructions="Be brief.", input=HELLO, extra_body={"text": form}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == '"Grüße"'
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    short = client.responses.create(model="smoke", input="Hello", max_output_tokens=3)
    assert short.status == "incomplete"
    assert short.incomplete_details.reason == "max_output_tokens"
    assert short.usage.output_tokens == 3


def test_embeddings_are_the_same_in_both_encodings(client):
    packed = client.embeddings.create(model="smoke", input=["Hello", "Good bye"])
    plain = client.embeddings.create(model="smoke", input=["Hello", "Good bye"], encoding_format="float")
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(value * value for value in other.embedding) == pytest.approx(1, abs=1e-5)
    assert packed.data[0].embedding != packed.data[1].embedding
    assert packed.usage.prompt_tokens > 2


@pytest.mark.parametrize(
    ("options", "kind", "param", "code"),
    [
        ({"extra_body": {"foo": 1}}, openai.BadRequestError, "foo", "unknown_parameter"),
        ({"temperature": -1}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"top_p": 0}, openai.BadRequestError, "top_p", "invalid_value"),
        ({"n": 500}, openai.BadRequestError, "n", "invalid_value"),
        ({"max_tokens": 5000}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
        ({"model": "gpt"}, openai.NotFoundError, "model", "model_not_found"),
        ({"verbosity": "high"}, openai.BadRequestError, "verbosity", "unsupported_parameter"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nix"}},
                }
            },
            openai.BadRequestError,
            "response_format",
            "invalid_value",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(client, options, kind, param, code, stream):  # noqa: PLR0917
    asked = {"model": "smoke", "messages": HELLO, "stream": stream} | options
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.param == param
    assert caught.value.code == code
