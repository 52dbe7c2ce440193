"""The sampler draws from the distribution it was asked for, and each row by itself."""

from __future__ import annotations

import math
import random

import pytest
import torch

from armllm import SamplingParams
from armllm.engine import sampler


def sample(logits, params, uniforms):
    """Only the tokens."""
    return sampler.sample(logits, params, uniforms)[0]


ALMOST_ONE = math.nextafter(1.0, 0.0)


def distribution(logits, params):
    """The probabilities that the parameters ask for, by the definition, in fp64."""
    probabilities = torch.softmax(logits.double() / params.temperature, -1)
    order = sorted(range(len(logits)), key=lambda token: -probabilities[token])
    order = [token for token in order if probabilities[token] >= params.min_p * probabilities[order[0]]]
    if params.top_k > 0:
        order = order[: params.top_k]
    mass, before, kept = sum(probabilities[token] for token in order), 0.0, []
    for token in order:
        if kept and before >= params.top_p * mass:
            break
        kept.append(token)
        before += probabilities[token]
    result = torch.zeros(len(logits), dtype=torch.float64)
    result[kept] = probabilities[kept]
    return result / result.sum()


def chi_square_limit(degrees):
    """Exceeded once in a million by chance (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4.75 * math.sqrt(spread)) ** 3


CHOICES = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 3.0},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "top_k and top_p": {"top_k": 12, "top_p": 0.7, "temperature": 1.5},
    "min_p": {"min_p": 0.1},
    "min_p, top_k and top_p": {"min_p": 0.02, "top_k": 15, "top_p": 0.9},
    "all of a small vocabulary": {"top_k": 1000, "top_p": 0.99},
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("vocab_size", [20, 700])
def test_draws_follow_the_distribution(choice, vocab_size):
    params = SamplingParams(**CHOICES[choice])
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * 1.5
    expected = distribution(logits, params)
    draws = 10_000
    rng = random.Random(2)  # noqa: S311 - test data
    drawn = sample(logits.expand(draws, -1), [params] * draws, [rng.random() for _ in range(draws)])
    counts = torch.bincount(torch.tensor(drawn), minlength=vocab_size).double()
    assert counts[expected == 0].sum() == 0, "a token was drawn that top_k or top_p forbid"
    # chi-square wants at least five expected draws per cell: the rare tokens share one
    common = expected * draws >= 5
    observed = torch.cat((counts[common], counts[~common].sum().view(1)))
    wanted = torch.cat((expected[common], expected[~common].sum().view(1))) * draws
    cells = wanted > 0
    chi_square = ((observed - wanted)[cells] ** 2 / wanted[cells]).sum()
    assert chi_square < chi_square_limit(int(cells.sum()) - 1)


@pytest.mark.parametrize("uniform", [0.0, ALMOST_ONE])
@pytest.mark.parametrize("choice", CHOICES)
def test_the_ends_of_the_interval_are_possible_tokens(choice, uniform):
    params = SamplingParams(**CHOICES[choice])
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 3
    logits[[0, 17, 298, 299]] = -torch.inf
    (token,) = sample(logits.unsqueeze(0), [params], [uniform])
    assert distribution(logits, params)[token] > 0


def test_a_wide_nucleus_is_whole():
    vocab_size = 9000
    params = SamplingParams(top_p=0.9)
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(4)) * 0.1
    allowed = distribution(logits, params) > 0
    assert allowed.sum() > 2000
    steps = 400
    uniforms = [(step + 0.5) / steps for step in range(steps)]
    drawn = set(sample(logits.expand(steps, -1), [params] * steps, uniforms))
    assert all(allowed[token] for token in drawn)
    assert len(drawn) > 390


def test_tokens_as_likely_as_the_last_kept_stay():
    logits = torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]])
    params = SamplingParams(top_k=2)
    drawn = {sample(logits, [params], [step / 100])[0] for step in range(100)}
    assert drawn == {0, 1, 2, 3}


def test_a_top_k_that_no_integer_of_64_bits_holds_keeps_all():
    assert sample(torch.zeros(1, 4), [SamplingParams(top_k=10**30)], [0.9]) == [3]


def test_greedy_takes_the_first_of_the_likeliest():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, -1.0]])
    assert sample(logits, [SamplingParams(temperature=0)] * 2, [0.9, 0.9]) == [1, 0]


def test_a_row_does_not_depend_on_its_company():
    rng = random.Random(5)  # noqa: S311 - test data
    rows, vocab_size = 40, 1500
    logits = torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(6))
    params = [
        SamplingParams(
            temperature=rng.choice([0, 0.3, 1.0, 2.0]),
            top_k=rng.choice([0, 1, 5, 50, 900]),
            top_p=rng.choice([1.0, 0.999, 0.9, 0.1]),
            min_p=rng.choice([0, 0, 0.05]),
        )
        for _ in range(rows)
    ]
    uniforms = [rng.random() for _ in range(rows)]
    alone = [sample(logits[[row]], [params[row]], [uniforms[row]])[0] for row in range(rows)]
    for size in (rows, 3, 17):
        order = rng.sample(range(rows), size)
        together = sample(logits[order], [params[row] for row in order], [uniforms[row] for row in order])
        assert together == [alone[row] for row in order]


def test_the_greatest_of_each_row_and_nan_before_any():
    numbers = torch.tensor([[0.0, 3.0, 2.0], [1.0, math.nan, 9.0], [-math.inf] * 3]).numpy()
    token_ids, logits = sampler.greatest(numbers)
    assert token_ids == [1, 1, 0]
    assert logits[0] == 3.0
    assert math.isnan(logits[1])
    assert logits[2] == -math.inf
