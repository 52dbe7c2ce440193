"""Bias, bans, penalties and log-probabilities do what their definitions say."""

from __future__ import annotations

import array
import math
import random

import pytest
import torch

from armllm import LLM, SamplingParams
from armllm.engine.logit_rules import LogitRules
from armllm.engine.logits import adjust
from armllm.engine.sequence import Sequence
from armllm.errors import RequestError

VOCAB_SIZE = 30
END, OTHER_END = 1, 2


def make_sequence(prompt, output, banned=(), **params):
    wanted = SamplingParams(**params)
    return Sequence(
        request_id="0",
        index=0,
        token_ids=array.array("i", [*prompt, *output]),
        num_prompt_tokens=len(prompt),
        max_tokens=100,
        params=wanted,
        end_token_ids=frozenset({END}),
        random=random.Random(0),  # noqa: S311 - test data
        detokenizer=None,
        rules=LogitRules.of(wanted, {END}, banned) if wanted.adjusts_logits else None,
    )


def adjusted(*sequences):
    """Logits before and after, a row per sequence."""
    before = torch.randn(len(sequences), VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    for row, sequence in enumerate(sequences):
        if sequence.rules is not None:
            adjust(after[row].numpy(), sequence, sequence.rules)
    return before, after


def test_each_row_gets_its_own_adjustment_and_plain_rows_none():
    plain = make_sequence([5], [6], temperature=0.3, top_k=3)
    biased = make_sequence([5], [6], logit_bias={7: 2.5, 8: -100})
    before, after = adjusted(plain, biased)
    assert torch.equal(before[0], after[0])
    expected = before[1].clone()
    expected[7] += 2.5
    expected[8] -= 100
    assert torch.equal(expected, after[1])


def test_penalties():
    before, after = adjusted(
        make_sequence([3, 4, 4], [5, 5, 6], repetition_penalty=1.5),
        make_sequence([3, 4, 4], [5, 5, 6], frequency_penalty=0.5),
        make_sequence([3, 4, 4], [5, 5, 6], presence_penalty=-0.25),
        make_sequence([3, 4, 4], [], frequency_penalty=2.0, presence_penalty=2.0),
    )
    expected = before.clone()
    for token in (3, 4, 5, 6):
        logit = expected[0, token]
        expected[0, token] = logit / 1.5 if logit > 0 else logit * 1.5
    expected[1, 5] -= 1.0
    expected[1, 6] -= 0.5
    expected[2, [5, 6]] += 0.25
    torch.testing.assert_close(after, expected)


def test_only_allowed_tokens_are_left():
    before, after = adjusted(make_sequence([3], [], allowed_token_ids=[9, 4]))
    assert torch.isfinite(after[0]).nonzero().flatten().tolist() == [4, 9]
    assert torch.equal(after[0, [4, 9]], before[0, [4, 9]])


@pytest.mark.parametrize(
    ("output", "banned"), [([], [9]), ([7], [9]), ([7, 8], [9, 20]), ([8], [9]), ([7, 8, 3], [9])]
)
def test_bad_words_are_banned_where_they_would_be_completed(output, banned):
    # the prompt ends with what would begin the longer word, but only output counts
    _, after = adjusted(make_sequence([3, 7, 8], output, [[9], [7, 8, 20]], bad_words=["x"]))
    assert torch.isinf(after[0]).nonzero().flatten().tolist() == banned


def test_min_tokens_bans_every_end():
    for done, banned in ((0, [END, OTHER_END]), (2, [END, OTHER_END]), (3, [])):
        _, after = adjusted(make_sequence([3], [9] * done, min_tokens=3, stop_token_ids=[OTHER_END]))
        assert torch.isinf(after[0]).nonzero().flatten().tolist() == banned


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint):
    return make_checkpoint()


@pytest.fixture(scope="module")
def llm(checkpoint):
    return LLM(checkpoint.folder, dtype="float32")


PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def complete(llm, **params):
    (output,) = llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(**params), use_tqdm=False)
    llm.llm_engine.check_integrity()
    return output.outputs


def test_min_tokens_lets_stop_strings_and_end_tokens_wait(llm):
    (plain,) = complete(llm, temperature=0, max_tokens=20, ignore_eos=True)
    stop = plain.token_ids[2]
    (ended,) = complete(llm, temperature=0, max_tokens=20, stop_token_ids=[stop])
    assert len(ended.token_ids) == 3
    (later,) = complete(llm, temperature=0, max_tokens=20, min_tokens=10, stop_token_ids=[stop])
    assert len(later.token_ids) >= 10
    assert stop not in later.token_ids[:10]
    text = next(c for c in plain.text if c.isascii())
    (cut,) = complete(llm, temperature=0, max_tokens=20, min_tokens=20, stop=[text], ignore_eos=True)
    assert cut.text == plain.text


def test_bad_words_do_not_come_out(llm):
    (plain,) = complete(llm, temperature=0, max_tokens=30, ignore_eos=True)
    tokenizer = llm.get_tokenizer()
    texts = {tokenizer.decode([token]) for token in plain.token_ids}
    words = sorted(text for text in texts if text.isascii() and text.strip().isprintable() and text.strip())
    assert len(words) > 5
    (without,) = complete(llm, temperature=0, max_tokens=30, ignore_eos=True, bad_words=words)
    for word in words:
        for text in (word, " " + word):
            banned = tokenizer.encode(text, add_special_tokens=False)
            ids = without.token_ids
            assert all(ids[at : at + len(banned)] != banned for at in range(len(ids)))


def test_repetition_penalty_gives_the_tokens_of_transformers(llm, checkpoint):
    expected = checkpoint.model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=30,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        repetition_penalty=1.3,
    )[0, len(PROMPT) :].tolist()
    (ours,) = complete(llm, temperature=0, max_tokens=30, ignore_eos=True, repetition_penalty=1.3)
    assert ours.token_ids == expected


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 3}, {"enable_prefix_caching": False}])
def test_n_completions_differ_and_do_not_depend_on_company(checkpoint, options):
    llm = LLM(checkpoint.folder, dtype="float32", **options)
    many = complete(llm, n=5, seed=3, max_tokens=12, ignore_eos=True)
    assert [completion.index for completion in many] == [0, 1, 2, 3, 4]
    assert len({tuple(completion.token_ids) for completion in many}) == 5
    (first,) = complete(llm, n=1, seed=3, max_tokens=12, ignore_eos=True)
    assert first.token_ids == many[0].token_ids
    params = [SamplingParams(n=5, seed=3, max_tokens=12, ignore_eos=True), SamplingParams(n=3, max_tokens=5)]
    crowd, _ = llm.generate([PROMPT, [9, 9]], params, use_tqdm=False)
    assert [c.token_ids for c in crowd.outputs] == [c.token_ids for c in many]


def test_logprobs_are_the_model_s_own(llm, checkpoint):
    params = {"max_tokens": 6, "seed": 1, "temperature": 2.0, "logit_bias": {7: 3.0}, "ignore_eos": True}
    (completion,) = complete(llm, logprobs=4, **params)
    (plain,) = complete(llm, **params)
    assert plain.token_ids == completion.token_ids
    assert plain.logprobs is None
    assert len(completion.logprobs) == 6
    total = 0.0
    for step, (token, described) in enumerate(zip(completion.token_ids, completion.logprobs, strict=True)):
        expected = checkpoint.logits([*PROMPT, *completion.token_ids[:step]]).log_softmax(-1)
        top = expected.topk(4).indices.tolist()
        assert list(described) == list(dict.fromkeys([token, *top]))
        for other, logprob in described.items():
            assert math.isclose(logprob.logprob, expected[other], abs_tol=1e-4)
            assert logprob.rank == int((expected > expected[other]).sum()) + 1
            assert logprob.decoded_token == llm.get_tokenizer().decode([other], skip_special_tokens=False)
        total += described[token].logprob
    assert math.isclose(total, completion.cumulative_logprob, abs_tol=1e-6)
    (whole,) = complete(llm, logprobs=-1, max_tokens=1)
    assert len(whole.logprobs[0]) == 400
    (only,) = complete(llm, logprobs=0, max_tokens=3, ignore_eos=True)
    assert [list(step) for step in only.logprobs] == [[token] for token in only.token_ids]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"n": 0}, "n must be"),
        ({"n": 2, "temperature": 0}, "greedy"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 20}, "min_tokens 20 is above max_tokens 16"),
        ({"logprobs": -2}, "logprobs"),
        ({"logit_bias": {3: 101}}, "logit_bias of 3"),
        ({"logit_bias": [3]}, "logit_bias must be a dict"),
        ({"logit_bias": {"3": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [" "]}, "bad_words"),
    ],
)
def test_parameters_out_of_range_are_named(params, words):
    with pytest.raises(RequestError, match=words):
        SamplingParams(**params)


@pytest.mark.parametrize(
    "params", [{"logit_bias": {400: 1}}, {"allowed_token_ids": [3, 400]}, {"logprobs": 401}]
)
def test_what_the_vocabulary_lacks_is_named(llm, params):
    with pytest.raises(RequestError, match=next(iter(params))):
        llm.generate(PROMPT, SamplingParams(**params), use_tqdm=False)
