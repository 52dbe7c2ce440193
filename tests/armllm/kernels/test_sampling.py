"""Drawn tokens beside the definition, in fp64."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels
from armllm.kernels import SamplingMetadata, reference

ROWS = 500


def metadata_of(rows=ROWS, **choice):
    """The same for all rows, and numbers that are spread over [0, 1)."""
    values = {"temperatures": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **choice}
    types = {"temperatures": torch.float32, "top_k": torch.int64}
    of_rows = {
        name: torch.full((rows,), value, dtype=types.get(name, torch.float64))
        for name, value in values.items()
        if name != "uniforms"
    }
    spread = (torch.arange(rows, dtype=torch.float64) + 0.5) / max(rows, 1)
    return SamplingMetadata(**of_rows, uniforms=choice.get("uniforms", spread))


def draws(ops, logits, metadata):
    token_ids = torch.full((len(logits),), -1)
    ops.sample(token_ids, logits, metadata)
    return token_ids


CHOICES = {
    "all": {},
    "top_k": {"top_k": 3},
    "top_k of most": {"top_k": 2900},
    "top_p": {"top_p": 0.6},
    "top_p of most": {"top_p": 0.99999},
    "min_p": {"min_p": 0.3},
    "min_p and top_p": {"min_p": 0.01, "top_p": 0.9},
    "top_k and top_p": {"top_k": 40, "top_p": 0.7, "temperatures": 0.5},
    "each": {"min_p": 0.02, "top_k": 30, "top_p": 0.9, "temperatures": 2.0},
}


@pytest.mark.parametrize("spread", [0.01, 1.0, 9.0])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_large_vocabulary_gives_the_tokens_of_the_definition(choice, spread):
    """Only some of the logits are looked at one by one; none that counts may be lost."""
    vocab_size = 3001
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(1)) * spread
    rows, metadata = logits.expand(ROWS, -1), metadata_of(**CHOICES[choice])
    got, wanted = draws(kernels, rows, metadata), draws(reference, rows, metadata)
    # Rounding moves borders a little, and may keep one token more or less of a share: where
    # all are nearly equally likely, borders move by this token.
    allowed = 0.02 if "top_p" in CHOICES[choice] and spread == 0.01 else 0.004
    order = logits.argsort(descending=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(vocab_size)
    assert abs(rank[got].max() - rank[wanted].max()) <= (1 if "top_p" in CHOICES[choice] else 0)
    moved = (got - wanted).abs()[got != wanted]
    assert len(moved) <= allowed * ROWS or moved.max() <= 2 * vocab_size / len(wanted.unique())


def test_a_row_of_one_token_and_no_rows():
    assert draws(kernels, torch.zeros(1, 1), metadata_of(1)).tolist() == [0]
    assert draws(kernels, torch.zeros(0, 5), metadata_of(0)).tolist() == []


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_row_that_is_no_distribution_gives_some_token_and_spares_the_others(choice, value):
    logits = torch.randn(2, 3001, generator=torch.Generator().manual_seed(1))
    half = torch.full((2,), 0.5, dtype=torch.float64)
    wanted = draws(kernels, logits, metadata_of(2, **CHOICES[choice], uniforms=half))[1]
    for spoiled in (slice(None), slice(300, None), slice(0, 2990), slice(7, 8)):
        broken = logits.clone()
        broken[0, spoiled] = value
        token, other = draws(kernels, broken, metadata_of(2, **CHOICES[choice], uniforms=half)).tolist()
        assert 0 <= token < 3001
        assert other == wanted


def test_forbidden_tokens_are_never_drawn():
    """Banned tokens are logits of -infinity; rounding at the ends of [0, 1) may not reach them."""
    logits = torch.full((3, 600), -torch.inf)
    logits[:, [3, 299, 598]] = torch.tensor([1.0, 2.0, 3.0])
    uniforms = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    for choice in CHOICES.values():
        tokens = draws(kernels, logits, metadata_of(3, **choice, uniforms=uniforms)).tolist()
        assert set(tokens) <= {3, 299, 598}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperatures", 0.0, r"temperatures\[0\] is 0\.0+, expected a number from 1e-30 to 1e30"),
        ("temperatures", float("nan"), r"temperatures\[0\] is -?nan, expected a number from 1e-30 to 1e30"),
        ("uniforms", torch.ones(2, dtype=torch.float64), r"uniforms\[0\] is 1\.0+, expected .* \[0, 1\)"),
    ],
)
def test_what_gives_no_distribution_is_refused(name, value, message):
    token_ids = torch.full((2,), -1)
    with pytest.raises(ValueError, match=message):
        kernels.sample(token_ids, torch.zeros(2, 9), metadata_of(2, **{name: value}))
    assert token_ids.tolist() == [-1, -1]
