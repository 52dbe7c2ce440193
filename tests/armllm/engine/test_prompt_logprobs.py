"""Prompt log-probabilities are those of the model on its own, however the prompt is cut up."""

from __future__ import annotations

import random

import pytest
import torch

from armllm import LLM, SamplingParams
from armllm.errors import RequestError


@pytest.mark.parametrize(
    "options",
    [{}, {"max_num_batched_tokens": 7}, {"num_gpu_blocks_override": 12, "max_model_len": 180}],
)
def test_they_are_the_model_s_own(make_checkpoint, options):
    checkpoint = make_checkpoint()
    rng = random.Random(0)  # noqa: S311 - test data
    prompts = [[rng.randrange(2, 400) for _ in range(length)] for length in (1, 2, 40, 90, 150)]
    llm = LLM(checkpoint.folder, dtype="float32", **options)
    params = SamplingParams(temperature=0, max_tokens=20, prompt_logprobs=3, ignore_eos=True)
    for _ in range(2):  # cold, then with a hot prefix cache
        for prompt, output in zip(prompts, llm.generate(prompts, params, use_tqdm=False), strict=True):
            with torch.inference_mode():
                expected = checkpoint.model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            assert output.prompt_logprobs[0] is None
            assert len(output.prompt_logprobs) == len(prompt)
            for position, described in enumerate(output.prompt_logprobs[1:]):
                top = expected[position].topk(3).indices.tolist()
                assert list(described) == list(dict.fromkeys([prompt[position + 1], *top]))
                for token, logprob in described.items():
                    assert abs(logprob.logprob - expected[position, token].item()) < 1e-4
        llm.llm_engine.check_integrity()


def test_they_don_t_disturb_the_output_nor_each_of_n(make_checkpoint):
    llm = LLM(make_checkpoint().folder, dtype="float32")
    params = {"n": 3, "seed": 4, "max_tokens": 9, "ignore_eos": True}
    (plain,) = llm.generate("Grüße", SamplingParams(**params), use_tqdm=False)
    (asked,) = llm.generate("Grüße", SamplingParams(prompt_logprobs=0, **params), use_tqdm=False)
    assert plain.outputs == asked.outputs
    assert plain.prompt_logprobs is None
    tokens = asked.prompt_token_ids
    assert [None if d is None else list(d) for d in asked.prompt_logprobs] == [
        None,
        *([t] for t in tokens[1:]),
    ]


@pytest.mark.parametrize("count", [-2, 1.5, 401])
def test_out_of_range_is_refused_by_name(make_checkpoint, count):
    llm = LLM(make_checkpoint().folder, dtype="float32")
    with pytest.raises(RequestError, match="prompt_logprobs"):
        llm.generate("x", SamplingParams(prompt_logprobs=count), use_tqdm=False)
