"""Beam search finds what an exhaustive search over the model's own probabilities finds."""

from __future__ import annotations

import pytest
import torch

from armllm import LLM, BeamSearchParams
from armllm.errors import RequestError

PROMPTS = [[5, 6, 7], [11, 12, 13, 14, 15]]


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint):
    return make_checkpoint()


@pytest.fixture(scope="module")
def llm(checkpoint):
    return LLM(checkpoint.folder, dtype="float32", max_model_len=32)


def expected(checkpoint, prompt, width, num_tokens):
    """The same search over transformers' logits, one sequence at a time."""
    beams = [(0.0, list(prompt))]
    for _ in range(num_tokens):
        candidates = []
        for total, tokens in beams:
            with torch.inference_mode():
                logits = checkpoint.model(torch.tensor([tokens])).logits[0, -1].float()
            values, ids = logits.log_softmax(-1).topk(2 * width)
            candidates += [
                (total + v, [*tokens, i]) for v, i in zip(values.tolist(), ids.tolist(), strict=True)
            ]
        beams = sorted(candidates, key=lambda one: one[0], reverse=True)[:width]
    return beams


def test_it_finds_the_beams_of_transformers_logits(llm, checkpoint):
    params = BeamSearchParams(beam_width=3, max_tokens=5, ignore_eos=True)
    outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        beams = expected(checkpoint, prompt, 3, 5)
        assert [sequence.tokens for sequence in output.sequences] == [tokens for _, tokens in beams]
        for sequence, (total, _) in zip(output.sequences, beams, strict=True):
            assert sequence.cum_logprob == pytest.approx(total, abs=1e-3)
            assert len(sequence.logprobs) == 5
            assert sequence.finish_reason == "length"
            assert sequence.text == llm.get_tokenizer().decode(sequence.tokens, skip_special_tokens=True)
    one_by_one = llm.beam_search(PROMPTS, params, concurrency_limit=1)
    assert [o.sequences[0].tokens for o in one_by_one] == [o.sequences[0].tokens for o in outputs]
    llm.llm_engine.check_integrity()


def test_an_end_token_completes_a_beam_and_the_length_penalty_orders(llm):
    (free,) = llm.beam_search([PROMPTS[0]], BeamSearchParams(beam_width=2, max_tokens=3, ignore_eos=True))
    end = free.sequences[0].tokens[3]  # make the best first token an end token
    processor = llm.llm_engine.processor
    processor.end_token_ids, ends = frozenset({end}), processor.end_token_ids
    try:
        params = BeamSearchParams(beam_width=2, max_tokens=3, length_penalty=0.0)
        (output,) = llm.beam_search([PROMPTS[0]], params)
    finally:
        processor.end_token_ids = ends
    assert output.sequences[0].finish_reason == "stop"  # by probability alone a short one is the best
    assert output.sequences[0].tokens == [*PROMPTS[0], end]
    assert len(output.sequences) == 2


def test_beams_end_at_the_models_length(llm):
    (output,) = llm.beam_search([[5] * 30], BeamSearchParams(beam_width=2, max_tokens=9, ignore_eos=True))
    assert [len(sequence.tokens) for sequence in output.sequences] == [32, 32]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "beam_width must be an integer of at least 1"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 0.7}, "temperature of a beam search can only be 0"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"include_stop_str_in_output": True}, "no stop strings"),
    ],
)
def test_wrong_parameters_are_named(options, message):
    with pytest.raises(RequestError, match=message):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **options})


def test_a_prompt_without_room_is_refused(llm):
    with pytest.raises(RequestError, match="max_model_len"):
        llm.beam_search([[5] * 32], BeamSearchParams(beam_width=2, max_tokens=4))
    with pytest.raises(RequestError, match="concurrency_limit"):
        llm.beam_search([[5]], BeamSearchParams(beam_width=2, max_tokens=4), concurrency_limit=0)
