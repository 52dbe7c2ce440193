"""A grammar that is too much for the compiler ends the process that tries it, and no other."""

from __future__ import annotations

import json

import pytest

from armllm import StructuredOutputsParams
from armllm.engine import structured
from armllm.engine.structured import GrammarCompiler
from armllm.errors import BusyError, RequestError
from armllm.smoke.passages import MODEL
from armllm.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def compiler():
    tokenizer = Tokenizer(MODEL)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({tokenizer.eos_token_id or 0}))


@pytest.fixture
def grammars(compiler):
    """A compiler that has refused nothing."""
    compiler._refused.clear()
    return compiler


def chain_of_objects(length):
    """Every object holds the next one: compiled by recursion."""
    definitions = {
        f"d{index}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{index + 1}"}}}
        for index in range(length)
    }
    return {"$defs": {**definitions, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def chain_of_rules(length):
    rules = [f"r{index}: r{index + 1}" for index in range(length)]
    return "\n".join(["start: r0", *rules, f'r{length}: "z"'])


@pytest.mark.parametrize(
    "wanted",
    [
        {"json": chain_of_objects(1500)},
        {"json": json.dumps(chain_of_objects(1500))},
        {"grammar": chain_of_rules(15_000)},
        pytest.param({"json": {"type": "integer", "multipleOf": 9_999_991}}, marks=pytest.mark.slow),
        pytest.param(
            {"regex": "".join(f"[a-{chr(98 + i % 24)}]?" for i in range(10_000))}, marks=pytest.mark.slow
        ),
    ],
    ids=["objects", "objects as text", "rules", "multipleOf", "regex"],
)
def test_what_overflows_the_stack_or_takes_for_ever_is_refused(grammars, wanted):
    with pytest.raises(RequestError, match="too complex"):
        grammars.matcher(StructuredOutputsParams(**wanted))
    assert grammars.matcher(StructuredOutputsParams(regex="[a-z]+"))


AMBIGUOUS = "start: s\ns: s s | /(.|\\n)/"


def test_a_grammar_whose_tokens_take_longer_and_longer_is_refused(grammars):
    """Compiled at once; the hundredth token takes half a second of everybody's steps."""
    with pytest.raises(RequestError, match="finding what may come next takes too much time"):
        grammars.matcher(StructuredOutputsParams(grammar=AMBIGUOUS))


def test_a_grammar_that_is_cheap_at_first_may_not_take_all_time_later(grammars, monkeypatch):
    """All sequences of the request share what it may take."""
    monkeypatch.setattr(structured.GrammarCheck, "check", lambda *_: 100_000)
    monkeypatch.setattr(structured, "SECONDS_AT_ONCE", 0.02)
    monkeypatch.setattr(structured, "SECONDS_PER_USE", 0.0)
    matcher = grammars.matcher(StructuredOutputsParams(grammar=AMBIGUOUS))
    (letter,) = grammars._tokenizer.encode("b", add_special_tokens=False)

    def write():
        for _ in range(200):
            matcher.banned(grammars._vocab_size)
            matcher.advance(letter)

    with pytest.raises(RequestError, match="takes too much time"):
        write()
    with pytest.raises(RequestError, match="takes too much time"):
        matcher.copy().banned(grammars._vocab_size)
    grammars.matcher(StructuredOutputsParams(grammar=AMBIGUOUS)).banned(grammars._vocab_size)


@pytest.mark.parametrize(
    "wanted", [{"regex": "a" * 300_000}, {"json": " " * 300_000 + "{}"}, {"choice": ["a" * 300_000]}]
)
def test_sources_have_a_limit(grammars, wanted):
    with pytest.raises(RequestError, match=f"{next(iter(wanted))} has 300"):
        grammars.matcher(StructuredOutputsParams(**wanted))


def test_a_grammar_is_compiled_once_and_what_is_kept_has_a_limit_in_bytes(grammars, monkeypatch):
    compiled = []

    def compile_grammar(vocabulary, kind, source):
        compiled.append(source)
        return original(vocabulary, kind, source)

    original = structured.compile_grammar
    monkeypatch.setattr(structured, "compile_grammar", compile_grammar)
    monkeypatch.setattr(structured.GrammarCheck, "check", lambda *_: 100_000)
    monkeypatch.setattr(structured, "CACHED_BYTES", 500_000)
    for index in [*range(9), 8, 8]:
        grammars.matcher(StructuredOutputsParams(regex=f"x{index}"))
        assert grammars.cached_bytes <= 500_000
    assert compiled == [f"x{index}" for index in range(9)]
    grammars.matcher(StructuredOutputsParams(regex="x0"))  # the oldest had to go
    assert compiled[-1] == "x0"


def test_a_grammar_takes_as_much_behind_many_others(grammars):
    """Catches a measure of memory in use: it says nothing of a grammar that fits where another one was."""
    schemas = [
        json.dumps({"type": "object", "properties": {f"p{n}": {"type": "integer"}}}) for n in range(60)
    ]
    found = sorted(grammars._check.check("json", schema) for schema in schemas)
    assert found[10] > 100_000, "a few may take the place of what was freed meanwhile"
    assert found[-10] < 200_000


def test_a_grammar_that_was_refused_is_not_tried_again_at_once(grammars, monkeypatch):
    """It would catch a client that repeats a costly grammar, each time for seconds of CPU time."""
    tried = []

    def check(_, kind, source):
        tried.append(source)
        raise RequestError(f"structured_outputs.{kind} is too complex")

    monkeypatch.setattr(structured.GrammarCheck, "check", check)
    monkeypatch.setattr(structured, "MOST_REFUSED", 2)
    for source in ["q1", "q1", "q2", "q3", "q3", "q1"]:
        with pytest.raises(RequestError, match="regex is too complex"):
            grammars.matcher(StructuredOutputsParams(regex=source))
    assert tried == ["q1", "q2", "q3", "q1"]
    monkeypatch.setattr(structured, "REFUSED_SECONDS", 0.0)
    for _ in range(2):
        with pytest.raises(RequestError, match="regex is too complex"):
            grammars.matcher(StructuredOutputsParams(regex="q4"))
    assert tried[4:] == ["q4", "q4"]


def test_where_no_process_starts_a_grammar_is_tried_again(grammars, monkeypatch):
    asked = []

    def check(*_):
        asked.append(1)
        raise BusyError("not available now")

    monkeypatch.setattr(structured.GrammarCheck, "check", check)
    for _ in range(2):
        with pytest.raises(BusyError):
            grammars.matcher(StructuredOutputsParams(regex="q5"))
    assert len(asked) == 2
