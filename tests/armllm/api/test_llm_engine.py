"""What goes wrong with one sequence ends its request; the others get what they would have got without it."""

from __future__ import annotations

import pytest
import torch

from armllm import LLM, PoolingParams, SamplingParams, StructuredOutputsParams
from armllm.api import llm_engine
from armllm.engine import prompt_logprobs, sampler
from armllm.engine.pooling import Pooler
from armllm.engine.sequence import Sequence
from armllm.errors import EngineError, RequestError

BAD_TOP_K = 17
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
GOOD = (
    {"seed": 1, "top_p": 0.9},
    {"temperature": 0, "bad_words": ["the"]},
    {"seed": 2, "n": 2, "logprobs": 2},
)


@pytest.fixture(scope="module")
def llm(make_checkpoint):
    return LLM(make_checkpoint().folder, dtype="float32")


def outputs(llm, *params):
    """The last output of each request, by the order of its parameters."""
    engine = llm.llm_engine
    for index, one in enumerate(params):
        if isinstance(one, dict):
            one = SamplingParams(max_tokens=8, ignore_eos=True, **one)  # noqa: PLW2901 - the usual case
        engine.add_request(str(index), list(PROMPT), one)
    found = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id] = output
    engine.check_integrity()
    return [found[str(index)] for index in range(len(params))]


def tokens(output):
    return [completion.token_ids for completion in output.outputs]


def fails_for(monkeypatch, module, name, is_bad):
    """Make a function raise where ``is_bad`` of its arguments."""
    function = getattr(module, name)

    def failing(*arguments, **options):
        if is_bad(*arguments):
            raise ZeroDivisionError("out of luck")
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, failing)


@pytest.mark.parametrize("place", ["metadata", "adjust", "append", "detokenize"])
def test_an_error_with_one_sequence_ends_its_request_alone(llm, monkeypatch, place):
    alone = [tokens(outputs(llm, one)[0]) for one in GOOD]
    if place == "metadata":
        fails_for(
            monkeypatch,
            sampler,
            "_metadata",
            lambda params, uniforms, rows: BAD_TOP_K in {params[row].top_k for row in rows},
        )
    elif place == "adjust":
        fails_for(monkeypatch, sampler, "adjust", lambda logits, one, rules: one.params.top_k == BAD_TOP_K)
    else:
        fails_for(monkeypatch, Sequence, place, lambda one, *_: one.params.top_k == BAD_TOP_K)
    bad, *good = outputs(llm, {"top_k": BAD_TOP_K, "logit_bias": {3: 1.0}, "n": 3, "seed": 5}, *GOOD)
    assert isinstance(bad.error, EngineError)
    assert "ZeroDivisionError: out of luck" in str(bad.error)
    assert all(completion.finish_reason == "error" for completion in bad.outputs)
    assert [tokens(output) for output in good] == alone
    assert all(output.error is None for output in good)


@pytest.mark.parametrize("place", ["prompt_logprobs", "read", "values"])
def test_an_error_with_what_a_prompt_computes_ends_its_request_alone(llm, monkeypatch, place):
    alone = [tokens(outputs(llm, one)[0]) for one in GOOD]
    if place == "prompt_logprobs":
        fails_for(monkeypatch, prompt_logprobs, "describe", lambda *_: True)
        bad_params = {"prompt_logprobs": 1, "n": 2}
    else:
        fails_for(monkeypatch, Pooler, place, lambda *_: True)
        bad_params = PoolingParams()
    good, bad, *others = outputs(llm, GOOD[0], bad_params, *GOOD[1:])
    assert isinstance(bad.error, EngineError)
    assert bad.finished
    assert bad.embedding is None
    assert [tokens(output) for output in (good, *others)] == alone


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1},
        {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1, "top_k": 1, "temperature": 1e6},
        {"allowed_token_ids": [7, 7], "stop_token_ids": [7], "min_tokens": 1, "temperature": 0},
    ],
)
def test_where_no_token_is_left_the_request_fails_and_token_0_does_not_come_out(llm, params):
    bad, good = outputs(llm, params, {"seed": 1})
    assert isinstance(bad.error, RequestError)
    assert "no token is left" in str(bad.error)
    assert tokens(bad) == [[]]
    assert len(tokens(good)[0]) == 8


@pytest.mark.parametrize("greatest", [{}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
@pytest.mark.parametrize(
    "params", [{"temperature": 1e6}, {"repetition_penalty": 1e6}, {"repetition_penalty": 1e-6}]
)
def test_the_greatest_and_least_numbers_give_tokens_that_are_allowed(llm, params, greatest):
    allowed = {"allowed_token_ids": [5, 9], "logit_bias": {5: 100.0, 9: -100.0}, "presence_penalty": 2.0}
    (output,) = outputs(llm, {**params, **greatest, **allowed, "seed": 3})
    assert output.error is None
    assert set(tokens(output)[0]) <= {5, 9}


def test_a_word_without_tokens_is_refused(llm, monkeypatch):
    tokenizer = llm.get_tokenizer()
    monkeypatch.setattr(tokenizer, "encode", lambda *_, **__: [])
    with pytest.raises(RequestError, match="bad_words: 'x' has no tokens"):
        llm.llm_engine.add_request("0", [3], SamplingParams(bad_words=["x"]))


def test_lists_are_prepared_once_for_all_prompts_that_share_them(llm, monkeypatch):
    encoded = []
    tokenizer = llm.get_tokenizer()
    encode = tokenizer.encode
    monkeypatch.setattr(
        tokenizer, "encode", lambda text, **options: encoded.append(text) or encode(text, **options)
    )
    params = SamplingParams(bad_words=["ab", "ab", "cd"], stop=["x" * 50], n=4, max_tokens=1)
    for index in range(20):
        llm.llm_engine.add_request(str(index), [3], params)
    requests = list(llm.llm_engine.requests.values())
    llm.llm_engine.abort(map(str, range(20)))
    assert encoded == ["ab", " ab", "cd", " cd"]
    assert len({id(one.rules) for request in requests for one in request.sequences}) == 1


def test_decodes_that_go_on_in_one_call_give_the_same(make_checkpoint, monkeypatch):
    """Over borders of blocks, with several ends: it would catch a block that is missing or kept."""
    other = LLM(make_checkpoint().folder, dtype="float32", max_num_seqs=3)
    lengths = (70, 5, 33, 1, 40)
    params = [
        SamplingParams(max_tokens=length, seed=length, temperature=index % 2, ignore_eos=True, logprobs=index)
        for index, length in enumerate(lengths)
    ]
    params.append(SamplingParams(max_tokens=40, temperature=0, stop=["e"]))
    params.append(SamplingParams(max_tokens=80, temperature=1, seed=8, n=2, ignore_eos=True))
    form = StructuredOutputsParams(regex="[a-f]{20,30}")
    params.append(SamplingParams(max_tokens=40, temperature=1, seed=9, structured_outputs=form))
    asked = [[*PROMPT, index] for index in range(len(params))]
    with monkeypatch.context() as context:
        context.setattr(llm_engine.LLMEngine, "_decode_on", lambda *_: None)
        usual = [one for output in other.generate(asked, params, use_tqdm=False) for one in output.outputs]
    decode_on, calls = llm_engine.LLMEngine._decode_on, []

    def counted(engine, sequences):
        before = engine.stats().num_steps
        decode_on(engine, sequences)
        calls.append(engine.stats().num_steps - before)

    monkeypatch.setattr(llm_engine.LLMEngine, "_decode_on", counted)
    found = [one for output in other.generate(asked, params, use_tqdm=False) for one in output.outputs]
    assert [(one.token_ids, one.text, one.logprobs) for one in found] == [
        (one.token_ids, one.text, one.logprobs) for one in usual
    ]
    assert sum(calls) > 20
    other.llm_engine.check_integrity()


@pytest.mark.parametrize(
    "changed", [{"logprobs": 1}, {"logit_bias": {7: 0.0}}, {"temperature": 1.0, "seed": 3}]
)
def test_greedy_rows_are_the_same_alone_and_beside_others(llm, changed):
    """A step of greedy rows alone has a shorter way to its tokens."""
    greedy = {"temperature": 0}
    (alone,) = outputs(llm, greedy)
    beside, other = outputs(llm, greedy, greedy | changed)
    assert tokens(beside) == tokens(alone)
    if "seed" not in changed:
        assert tokens(other) == tokens(alone)


def test_logits_of_another_tensor_have_numbers_of_their_own(llm):
    runner = llm.llm_engine.runner
    first, second = torch.zeros(1, 3), torch.ones(1, 3)
    assert runner.numbers(first).tolist() == [[0.0] * 3]
    assert runner.numbers(second).tolist() == [[1.0] * 3]
    second[0, 1] = 5.0  # as the next step does, in the same memory
    assert runner.numbers(second).tolist() == [[1.0, 5.0, 1.0]]
