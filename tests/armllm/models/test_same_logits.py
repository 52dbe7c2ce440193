"""Logits are those of transformers, step by step, for random configurations of every family."""

from __future__ import annotations

import json
import random
import warnings

import pytest
import torch
import transformers
from tests.armllm.models.random_configs import FAMILIES, VOCAB_SIZE, random_config

from armllm import LLM, SamplingParams

PROMPT_LENGTHS = (1, 13, 36, 62)
NUM_TOKENS = 8
SEEDS = range(6)


def reference(folder, config, seed):
    """A transformers model with random weights, saved in ``folder`` as its users get it."""
    torch.manual_seed(seed)
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32).eval()
    # a norm's weight at rest is 1, or 0 where 1 is added
    rest = 0.0 if config["model_type"].startswith("gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "embed" in name:
                parameter.normal_(std=0.3)
            elif "norm" in name:
                parameter.uniform_(rest - 0.5, rest + 0.5)
            else:
                parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    # as the hub has it, not as this version of transformers rewrites it
    (folder / "config.json").write_text(json.dumps(config))
    return model


def expected_logits(model, prompt, tokens):
    """fp32 logits of every step, each computed as for a prompt of its own: frequencies may switch."""
    ids = torch.tensor([[*prompt, *tokens]])
    switches = getattr(model.config, "rope_parameters", None) or {}
    with torch.inference_mode(), warnings.catch_warnings():
        if switches.get("rope_type") != "longrope":
            return model(ids).logits[0, len(prompt) - 1 : -1]
        steps = [model(ids[:, : len(prompt) + step]).logits[0, -1] for step in range(len(tokens))]
    return torch.stack(steps)


def spy_on_logits(llm):
    seen = []
    run = llm.llm_engine.runner.run

    def spy(sequences):
        seen.append(run(sequences).clone())
        return seen[-1]

    llm.llm_engine.runner.run = spy
    return seen


def our_logits(llm, seen, prompt):
    """Tokens and the logits that they were chosen from."""
    seen.clear()
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    (output,) = llm.generate(list(prompt), params, use_tqdm=False)
    rows = [logits[0] for logits in seen if len(logits)]
    return list(output.outputs[0].token_ids), torch.stack(rows)


def random_prompts(seed):
    rng = random.Random(seed)  # noqa: S311 - test data
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(length)] for length in PROMPT_LENGTHS]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("architecture", FAMILIES)
def test_fp32_logits_are_those_of_transformers(tmp_path, architecture, seed):
    config = random_config(architecture, seed)
    model = reference(tmp_path, config, seed)
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=50, max_num_seqs=2)
    seen = spy_on_logits(llm)
    for prompt in random_prompts(seed):
        tokens, logits = our_logits(llm, seen, prompt)
        expected = expected_logits(model, prompt, tokens)
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4, msg=lambda text: f"{config}\n{text}")
        best = expected.topk(2).values
        clear = best[:, 0] - best[:, 1] > 2e-4
        assert torch.equal(torch.tensor(tokens)[clear], expected.argmax(-1)[clear])
