"""Where LongRoPE changes its frequencies, each sequence is what transformers makes of one of its length."""

from __future__ import annotations

import pytest
import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, random_prompts, save_reference

from armllm import LLM, SamplingParams

SWITCH = 40


@pytest.fixture(scope="module")
def phi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phi")
    halves = 8
    config = random_config("Phi3ForCausalLM", 0) | {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
        "num_hidden_layers": 2,
        "original_max_position_embeddings": SWITCH,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + index / 50 for index in range(halves)],
            "long_factor": [1.5 + index / 4 for index in range(halves)],
            "original_max_position_embeddings": SWITCH,
        },
    }
    return folder, save_reference(folder, config, 0)


def expected(model, prompt, num_tokens):
    """transformers computes all keys again where the frequencies change."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


def generate(llm, prompts, num_tokens):
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    outputs = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    assert llm.llm_engine.blocks.num_free_blocks == llm.llm_engine.blocks.num_blocks
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": SWITCH},  # a chunk that ends where the old frequencies do
        {"max_num_batched_tokens": 7},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 9, "max_model_len": 90},  # preempted while they cross over
    ],
)
def test_sequences_that_cross_over_are_computed_again(phi, options):
    folder, model = phi
    prompts = random_prompts((30, 39, 40, 41, 48, 3), 1)
    wanted = [expected(model, prompt, 20) for prompt in prompts]
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True, **options)
    assert generate(llm, prompts, 20) == wanted
    assert generate(llm, prompts, 20) == wanted  # with whatever the prefix cache holds by now


def test_keys_of_short_sequences_are_not_taken_for_those_of_long_ones(phi):
    """One text, first as a short prompt and then as the beginning of a long one, and the other way round."""
    folder, model = phi
    (prompt,) = random_prompts((70,), 2)
    short = prompt[: SWITCH - 5]
    wanted = [expected(model, short, 4), expected(model, prompt, 4)]
    for order in ([0, 1, 0], [1, 0, 1]):
        llm = LLM(folder, dtype="float32", skip_tokenizer_init=True)
        for index in order:
            assert generate(llm, [(short, prompt)[index]], 4) == [wanted[index]]


def test_only_long_sequences_take_the_long_frequencies(phi):
    """Side by side in one step, each has its own."""
    folder, model = phi
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    for length in (SWITCH, SWITCH + 1):
        (prompt,) = random_prompts((length,), 3)
        _, logits = llm.generate(prompt, 1)
        with torch.inference_mode():
            wanted = model(torch.tensor([prompt])).logits[0, -1]
        torch.testing.assert_close(logits[0], wanted, rtol=0, atol=1e-4)
