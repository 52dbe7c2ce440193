"""Structured output fits what was asked for, whatever the model would rather say."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from armllm import LLM, AsyncLLM, RequestOutputKind, SamplingParams, StructuredOutputsParams
from armllm.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "grün", "青"]}, "maxItems": 3},
        "nested": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}]},
    },
    "required": ["name", "age", "tags", "nested"],
    "additionalProperties": False,
    "$defs": {
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "boolean"}, {"const": 7}],
            "items": False,
            "minItems": 2,
        }
    },
}
SELECT = """
root ::= "SELECT " column ("," column)* " FROM " [a-z]{3}
column ::= "a" | "b" [0-9]
"""


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    return make_checkpoint().folder


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, dtype="float32")


def said(llm, count=6, *, max_tokens=200, **wanted):
    """What a random model says under a constraint, a few times."""
    params = SamplingParams(
        n=count,
        seed=1,
        max_tokens=max_tokens,
        structured_outputs=StructuredOutputsParams(**wanted),
    )
    (output,) = llm.generate("x", params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    assert {completion.finish_reason for completion in output.outputs} == {"stop"}
    return [completion.text for completion in output.outputs]


def check_person(person):
    assert list(person) == ["name", "age", "tags", "nested"]
    assert isinstance(person["name"], str)
    assert len(person["name"]) <= 8
    assert 0 <= person["age"] <= 150
    assert set(person["tags"]) <= {"red", "grün", "青"}
    assert person["nested"] in (None, [True, 7], [False, 7])


@pytest.mark.parametrize("schema", [PERSON, json.dumps(PERSON)])
def test_a_schema_is_kept_to(llm, schema):
    texts = said(llm, json=schema)
    for text in texts:
        check_person(json.loads(text))
    assert len(set(texts)) > 1


def test_other_forms_are_kept_to(llm):
    for text in said(llm, regex=r"(ab|cd)+-\d{2,3}\.", max_tokens=250):
        assert re.fullmatch(r"(ab|cd)+-[0-9]{2,3}\.", text)
    choices = ['ye"s', "no\n", "maybe so", "Köln \\ 東京"]
    assert set(said(llm, 30, choice=choices)) <= set(choices)
    assert len(set(said(llm, 30, choice=choices))) > 1
    for text in said(llm, grammar=SELECT):
        assert re.fullmatch(r"SELECT (a|b[0-9])(,(a|b[0-9]))* FROM [a-z]{3}", text)
    lark = 'start: "<" WORD ">" \nWORD: /[a-f]{2,4}/'
    for text in said(llm, grammar=lark):
        assert re.fullmatch("<[a-f]{2,4}>", text)
    empty = {"type": "object", "additionalProperties": False}
    assert set(said(llm, json=empty)) == {"{}"}


def test_any_json_object_is_an_object(llm):
    params = SamplingParams(
        seed=3,
        max_tokens=250,
        logit_bias={llm.get_tokenizer().encode("}", add_special_tokens=False)[0]: 15.0},
        structured_outputs=StructuredOutputsParams(json_object=True),
    )
    (output,) = llm.generate("x", params, use_tqdm=False)
    assert isinstance(json.loads(output.outputs[0].text), dict)


@pytest.mark.parametrize("options", [{"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 12}])
def test_constraints_hold_in_company_and_after_preemption(folder, options):
    llm = LLM(folder, dtype="float32", max_model_len=160, **options)
    wanted = [StructuredOutputsParams(json=PERSON), None, StructuredOutputsParams(regex="[ab]{40}")]
    params = [
        SamplingParams(seed=seed, max_tokens=130, structured_outputs=wanted[seed % 3], ignore_eos=True)
        for seed in range(9)
    ]
    outputs = llm.generate([[seed + 2] * 9 for seed in range(9)], params, use_tqdm=False)
    if "num_gpu_blocks_override" in options:
        assert llm.stats().num_preemptions > 0
    for seed, output in enumerate(outputs):
        (completion,) = output.outputs
        if seed % 3 == 0 and completion.finish_reason == "stop":
            check_person(json.loads(completion.text))
        if seed % 3 == 1:
            assert len(completion.token_ids) == 130
        if seed % 3 == 2:
            assert re.fullmatch("[ab]{40}", completion.text)


def test_streamed_constraints_hold_and_the_event_loop_is_not_kept_waiting(folder):
    engine = AsyncLLM(str(folder), dtype="float32")

    async def work():
        params = SamplingParams(
            seed=1,
            max_tokens=200,
            structured_outputs=StructuredOutputsParams(json=PERSON),
            output_kind=RequestOutputKind.DELTA,
        )
        text = ""
        async for output in engine.generate("x", params, "r"):
            text += output.outputs[0].text
        bad = StructuredOutputsParams(json={"type": "banana"})
        with pytest.raises(RequestError, match="json can't be compiled"):
            await anext(engine.generate("x", SamplingParams(structured_outputs=bad), "s"))
        return text

    try:
        check_person(json.loads(asyncio.run(work())))
        assert not engine._streams
    finally:
        engine.shutdown()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"json": {"type": "banana"}}, "json can't be compiled: Invalid type: banana"),
        ({"json": {"$ref": "http://example.org/x"}}, "json can't be compiled"),
        ({"json": {"$ref": "#"}}, "json can't be used: no text fits it.*ref"),
        ({"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, "no text fits it"),
        ({"json": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}, "contain itself without end"),
        ({"json": {"const": "a" * 200_000}}, "json is too complex"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": "[1]"}, "must be a schema"),
        ({"json": False}, "must be a schema"),
        ({"json": {"enum": [{1, 2}]}}, "json is not JSON"),
        ({"regex": "("}, "regex can't be compiled.*unclosed group"),
        ({"regex": "(?=a)b"}, "regex can't be compiled.*look"),
        ({"grammar": "start: nowhere"}, "grammar can't be compiled.*nowhere"),
        ({"grammar": "root ::= ["}, "grammar can't be compiled"),
    ],
)
def test_what_can_t_be_compiled_is_refused_in_a_line(llm, wanted, words):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**wanted))
    with pytest.raises(RequestError, match=words) as caught:
        llm.generate("x", params, use_tqdm=False)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({}, "not none"),
        ({"json": {}, "regex": "a"}, "not json and regex"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"choice": "ab"}, "choice"),
        ({"regex": ""}, "regex"),
        ({"grammar": 5}, "grammar"),
        ({"json": 5}, "json"),
        ({"json_object": False}, "json_object"),
    ],
)
def test_parameters_are_checked(wanted, words):
    with pytest.raises(RequestError, match=words):
        StructuredOutputsParams(**wanted)
    with pytest.raises(RequestError, match="structured_outputs must be StructuredOutputsParams"):
        SamplingParams(structured_outputs={"regex": "a"})


def test_a_grammar_wins_over_min_tokens_and_ends_by_itself(llm):
    params = SamplingParams(
        min_tokens=9, ignore_eos=True, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])
    )
    (output,) = llm.generate("x", params, use_tqdm=False)
    assert output.outputs[0].text in {"yes", "no"}
    assert output.outputs[0].finish_reason == "stop"


def test_what_leaves_no_token_is_an_error_of_its_request(llm):
    params = SamplingParams(
        allowed_token_ids=[5], structured_outputs=StructuredOutputsParams(choice=["yes", "no"])
    )
    with pytest.raises(RequestError, match="no token is left"):
        llm.generate("x", params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    with pytest.raises(RequestError, match="needs a tokenizer"):
        LLM(str(llm.llm_engine.config.model), dtype="float32", skip_tokenizer_init=True).generate(
            [5], params, use_tqdm=False
        )
