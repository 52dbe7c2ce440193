"""A seed fixes a request's tokens, whatever else happens in the engine."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from armllm import LLM, SamplingParams


def prompts(count, rng):
    return [[rng.randrange(2, 400) for _ in range(rng.randrange(1, 40))] for _ in range(count)]


def run(llm, batch, params):
    outputs = llm.generate([{"prompt_token_ids": p} for p in batch], params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 11},
        {"num_gpu_blocks_override": 6, "max_model_len": 80},
        {"max_num_seqs": 3},
    ],
)
def test_seeded_requests_give_the_same_alone_and_in_any_batch(make_checkpoint, options):
    folder = make_checkpoint().folder
    rng = random.Random(1)  # noqa: S311 - test data
    batch = prompts(8, rng)
    params = [
        SamplingParams(
            temperature=rng.choice([0.5, 1.0, 1.5]),
            top_k=rng.choice([0, 20]),
            top_p=rng.choice([1.0, 0.9]),
            seed=seed,
            max_tokens=30,
            ignore_eos=True,
        )
        for seed in range(8)
    ]
    single = LLM(folder, dtype="float32")
    alone = [run(single, [prompt], choice)[0] for prompt, choice in zip(batch, params, strict=True)]
    company = prompts(4, rng)
    noise = [SamplingParams(temperature=2.0, max_tokens=17, ignore_eos=True)] * 4
    together = run(LLM(folder, dtype="float32", **options), company + batch, noise + params)
    assert together[4:] == alone


def test_seeds_matter_and_so_does_the_engine_s(make_checkpoint):
    folder = make_checkpoint().folder
    prompt = [3, 1, 4, 1, 5]

    def draw(llm, seed):
        return run(llm, [prompt], SamplingParams(seed=seed, max_tokens=20, ignore_eos=True))[0]

    llm = LLM(folder, dtype="float32")
    assert draw(llm, 1) == draw(llm, 1)
    assert len({tuple(draw(llm, seed)) for seed in (0, 1, 2, -2, (1 << 63) - 1)}) == 5
    assert draw(llm, None) != draw(llm, None)
    assert draw(LLM(folder, dtype="float32", seed=7), None) == draw(
        LLM(folder, dtype="float32", seed=7), None
    )
    assert draw(LLM(folder, dtype="float32", seed=7), None) != draw(
        LLM(folder, dtype="float32", seed=8), None
    )


@pytest.mark.parametrize("many", ["seeds", "completions of one seed"])
def test_whole_requests_follow_the_distribution(make_checkpoint, many):
    """Neighboring seeds, and the completions of one, must be as good as independent draws."""
    checkpoint = make_checkpoint()
    llm = LLM(checkpoint.folder, dtype="float32", max_num_seqs=64)
    prompt, draws, allowed = [3, 1, 4, 1, 5], 1500, list(range(20, 32))
    options = {"max_tokens": 2, "ignore_eos": True, "allowed_token_ids": allowed, "temperature": 2.0}
    if many == "seeds":
        params = [SamplingParams(seed=seed, **options) for seed in range(draws)]
        drawn = [tokens[0] for tokens in run(llm, [prompt] * draws, params)]
    else:
        params = SamplingParams(seed=0, n=draws, **options)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        drawn = [completion.token_ids[0] for completion in output.outputs]
    expected = (checkpoint.logits(prompt)[allowed].double() / 2.0).softmax(-1) * draws
    counts = Counter(drawn)
    pairs = [(counts[token], wanted) for token, wanted in zip(allowed, expected.tolist(), strict=True)]
    common = [pair for pair in pairs if pair[1] >= 5]
    rest = [sum(side) for side in zip(*(pair for pair in pairs if pair[1] < 5), strict=True)]
    cells = [*common, *([tuple(rest)] if rest else [])]
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    degrees = len(cells) - 1
    spread = 2 / (9 * degrees)  # exceeded once in a million by chance (Wilson and Hilferty 1931)
    assert statistic < degrees * (1 - spread + 4.75 * math.sqrt(spread)) ** 3
    assert degrees >= 5
