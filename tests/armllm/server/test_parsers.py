"""Tool calls and reasoning are found however the text is cut into pieces, and what is neither stays text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armllm.server.events import CallArguments, CallStart, PlainParser, Reasoning, Text
from armllm.server.reasoning import REASONING_PARSERS
from armllm.server.tools import TOOL_PARSERS
from armllm.server.tools.calls import ListParser, NamedParser

NAMES = frozenset({"f", "g"})
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "x}]\\"", "b": [1, {"c": null}]}}\n</tool_call>'
FINAL = "<|channel|>final<|message|>"
CALL = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
CASES = [
    # format, text, answer, calls
    ("hermes", "Hello <b> </b>\n", "Hello <b> </b>\n", []),
    ("hermes", HERMES, "", [("f", '{"a": "x}]\\"", "b": [1, {"c": null}]}')]),
    ("hermes", f"Sure.\n{HERMES}\n{HERMES}", "Sure.", [("f", '{"a": "x}]\\"", "b": [1, {"c": null}]}')] * 2),
    ("hermes", '<tool_call>{"arguments": {"q": 1}, "name": "g"}</tool_call>', "", [("g", '{"q": 1}')]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    ("hermes", "<tool_call>no</tool_call> tail", "<tool_call>no</tool_call> tail", []),
    ("hermes", '<tool_call>{"x": 1}</tool_call>', '<tool_call>{"x": 1}</tool_call>', []),
    ("hermes", '<tool_call>{"name"', '<tool_call>{"name"', []),
    ("hermes", "a <tool_ca", "a <tool_ca", []),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        "llama3_json",
        '<|python_tag|>{"name": "f", "parameters": {"a": [1]}}; {"name":"g","parameters":{}}',
        "",
        [("f", '{"a": [1]}'), ("g", "{}")],
    ),
    ("llama3_json", '  {"name": "f", "parameters": null}', "", [("f", "{}")]),
    ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3_json", '{"a": 1} and', '{"a": 1} and', []),
    ("llama3_json", "Hello {", "Hello {", []),
    ("llama3_json", "<|python", "<|python", []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    (
        "mistral",
        'Hi. [TOOL_CALLS]f{"a": {"b": 2}}[TOOL_CALLS]g[ARGS]{}',
        "Hi.",
        [("f", '{"a": {"b": 2}}'), ("g", "{}")],
    ),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123[ARGS]{"a":1}', "", [("f", '{"a":1}')]),
    ("mistral", "[1, 2] and [TOOL", "[1, 2] and [TOOL", []),
    ("llama3_json", '{"name": "f", "arguments": [1 x] and', " and", [("f", "[1 x]")]),
    ("mistral", '[TOOL_CALLS]{"name": 1} [TOOL_CALLS]f{}', '{"name": 1}', [("f", "{}")]),
    ("openai", f"{FINAL}Hello <b> |<|return|>", "Hello <b> |", []),
    ("openai", f"{FINAL}cut off <|re", "cut off <|re", []),
    ("openai", f'{CALL}{{"a": "<|"}}<|call|>', "", [("f", '{"a": "<|"}')]),
    ("openai", f"{CALL}<|call|><|start|>assistant{CALL}{{}}", "", [("f", "{}"), ("f", "{}")]),
    # the recipient may stand before the channel
    ("openai", " to=functions.g<|channel|>commentary json<|message|>[1]<|call|>", "", [("g", "[1]")]),
    ("openai", "<|start|>assistant<|channel|>commentary to=g<|message|>{}", "", [("g", "{}")]),
    # a preamble for the user, then a call, then what no header leads in
    (
        "openai",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}{{}}<|call|>\n then",
        "I look.\nthen",
        [("f", "{}")],
    ),
    ("openai", f"{FINAL}no end{FINAL}again", "no end\nagain", []),
    ("openai", f"<|channel|>final<|end|><|start|>{FINAL}x", "x", []),
    ("openai", "<|start|>assistant<|chan", "", []),
    ("openai", "<|chan", "<|chan", []),
    ("openai", '{"just": "text"} to=functions.f', '{"just": "text"} to=functions.f', []),
    ("openai", f"<|channel|>{'x' * 1500}<|message|>y", f"{'x' * 1500}<|message|>y", []),
    ("openai", "<|channel|>commentary to=functions.<|message|>y", "y", []),
]


# what texts are made of that look like calls and mostly are none
PIECES = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", '{"name": "f", '),
    *('"arguments": ', '"parameters": {"a": 1}}', "f{", "{", "}", "[", "]", '"', "\\", ":", ",", ";"),
    *("x", "1", " ", "\n"),
    *("<|start|>", "<|start|>assistant", FINAL, CALL, "<|channel|>", "<|message|>", "<|end|>", " to=f", "<|"),
    *("<|channel|>analysis<|message|>", "<|call|>", "x" * 600),
]


def read(parser, pieces):
    """(answer, reasoning, calls) that a parser finds in pieces of text."""
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    answer = "".join(event.text for event in events if isinstance(event, Text))
    thought = "".join(event.text for event in events if isinstance(event, Reasoning))
    calls = {event.index: [event.name, ""] for event in events if isinstance(event, CallStart)}
    for event in events:
        if isinstance(event, CallArguments):
            calls[event.index][1] += event.text
    assert list(calls) == list(range(len(calls)))
    return answer, thought, [tuple(call) for call in calls.values()]


def cut(text, places):
    bounds = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize(("name", "text", "answer", "calls"), CASES)
def test_calls_are_found_in_whole_and_in_single_characters(name, text, answer, calls):
    assert read(TOOL_PARSERS[name](NAMES), [text]) == (answer, "", calls)
    assert read(TOOL_PARSERS[name](NAMES), text) == (answer, "", calls)


@settings(max_examples=300, deadline=None)
@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 120), max_size=6))
def test_where_the_text_is_cut_changes_nothing(case, places):
    name, text, answer, calls = case
    assert read(TOOL_PARSERS[name](NAMES), cut(text, places)) == (answer, "", calls)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(TOOL_PARSERS)),
    words=st.lists(
        st.sampled_from(PIECES),
        max_size=12,
    ),
    places=st.lists(st.integers(0, 100), max_size=5),
)
def test_no_text_breaks_a_parser_or_depends_on_its_pieces(name, words, places):
    text = "".join(words)
    assert read(TOOL_PARSERS[name](NAMES), cut(text, places)) == read(TOOL_PARSERS[name](NAMES), [text])


def test_forced_calls():
    text = '[{"name": "f", "parameters": {"a": "]"}}, {"name": "g", "parameters": {}}]'
    expected = ("", "", [("f", '{"a": "]"}'), ("g", "{}")])
    assert read(ListParser(), [text]) == read(ListParser(), text) == expected
    assert read(NamedParser("f"), '{"a": 1}') == ("", "", [("f", '{"a": 1}')])


HARMONY, THINK = "<|start|>assistant", "<|channel|>analysis<|message|>"
OPEN_PROMPT, CLOSED_PROMPT = "<assistant><think>\n", "<assistant><think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("name", "prompt", "text", "answer", "thought"),
    [
        ("qwen3", "<assistant>", "<think>\nhm, 1 < 2\n</think>\n\nYes.\n", "Yes.\n", "hm, 1 < 2"),
        ("qwen3", "<assistant>", "Yes </think>", "Yes </think>", ""),
        ("qwen3", "<assistant>", "<thi", "<thi", ""),
        ("qwen3", OPEN_PROMPT, "hm\n</think>\nYes", "Yes", "hm"),
        ("qwen3", CLOSED_PROMPT, "Yes", "Yes", ""),
        ("deepseek_r1", "<assistant>", "hm</think>Yes", "Yes", "hm"),
        ("deepseek_r1", "<assistant>", "<think>hm\n\nha</think>Yes", "Yes", "hm\n\nha"),
        ("deepseek_r1", "<assistant>", "never ends", "", "never ends"),
        ("deepseek_r1", CLOSED_PROMPT, "Yes", "Yes", ""),
        ("openai_gptoss", HARMONY, f"{THINK}hm<|end|>{HARMONY}{FINAL}Yes<|return|>", "Yes", "hm"),
        ("openai_gptoss", HARMONY, f"{THINK}a<|end|>{HARMONY}{THINK}b", "", "a\nb"),
        ("openai_gptoss", HARMONY, "<|channel|>analysis to=python code<|message|>1+1<|call|>", "", "1+1"),
        ("openai_gptoss", HARMONY, f"{CALL}{{}}<|call|>", "{}", ""),  # no parser of calls
        ("openai_gptoss", HARMONY, '{"a": 1}', '{"a": 1}', ""),
        ("openai_gptoss", f"{HARMONY}{THINK}We", f" think<|end|>{HARMONY}{FINAL}x", "x", " think"),
        ("openai_gptoss", f"{HARMONY}<|channel|>analysis", "<|message|>hm", "", "hm"),
    ],
)
def test_thoughts_are_parted_from_answers(name, prompt, text, answer, thought):
    for pieces in ([text], text, cut(text, [3, 9])):
        assert read(REASONING_PARSERS[name](PlainParser(), prompt), pieces) == (answer, thought, [])


def test_calls_after_a_thought():
    parser = REASONING_PARSERS["qwen3"](TOOL_PARSERS["hermes"](NAMES), "")
    answer, thought, calls = read(parser, f"<think>a call?</think>\n\n{HERMES}")
    assert (answer, thought, len(calls)) == ("", "a call?", 1)


def test_harmony_has_thoughts_calls_and_answers_in_one_text():
    text = f"{THINK}hm<|end|>{HARMONY}{CALL}{{}}<|call|>{HARMONY}{FINAL}Done.<|return|>"
    for pieces in ([text], text, cut(text, [3, 30, 31, 70])):
        parser = REASONING_PARSERS["openai_gptoss"](TOOL_PARSERS["openai"](NAMES), HARMONY)
        assert read(parser, pieces) == ("Done.", "hm", [("f", "{}")])
        assert read(TOOL_PARSERS["openai"](NAMES), pieces) == ("Done.", "hm", [("f", "{}")])


def test_another_parser_reads_the_answers_of_harmony():
    parser = REASONING_PARSERS["openai_gptoss"](TOOL_PARSERS["hermes"](NAMES), HARMONY)
    answer, thought, calls = read(parser, f"{THINK}hm<|end|>{HARMONY}{FINAL}{HERMES}<|return|>")
    assert (answer, thought, len(calls)) == ("", "hm", 1)
