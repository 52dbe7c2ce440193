"""Logits to token ids.

A draw is the inverse of the cumulative distribution at one uniform number that the request's own generator
gives. Whatever shares the batch, a row is worked on alone, so the same seed gives the same tokens.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from armllm import kernels
from armllm.engine import logprobs
from armllm.engine.logits import adjust
from armllm.engine.placement import torch_threads
from armllm.kernels import SamplingMetadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt
    from torch import Tensor

    from armllm.engine.failures import Alone
    from armllm.engine.runner import Runner
    from armllm.engine.sequence import Sequence
    from armllm.sampling_params import SamplingParams


class Choice(NamedTuple):
    """A token, its logit, and all log-probabilities of the row where the request wants some."""

    token_id: int
    logit: float
    raw: Tensor | None = None


class Sampler:
    """Chooses the next tokens of requests. An error of one row ends the request that ``alone`` names."""

    def __init__(self, runner: Runner, alone: Callable[[Sequence], Alone]) -> None:
        self._runner, self._alone = runner, alone

    def choose(self, logits: Tensor, sequences: Sequences[Sequence]) -> list[Choice]:
        """A token per row of fp32 ``logits[rows, vocab_size]``, which requests change before."""
        if all([sequence.takes_greatest for sequence in sequences]):  # noqa: C419 - small models feel it
            return list(map(Choice, *greatest(self._runner.numbers(logits))))
        with torch_threads(few=self._runner.own_products, elements=logits.numel()):
            raw = logprobs.raw_logprobs(logits, [sequence.params for sequence in sequences])
            token_ids, found = self._draw(logits, sequences)
        return [Choice(*both, raw.get(row)) for row, both in enumerate(zip(token_ids, found, strict=True))]

    def _draw(self, logits: Tensor, sequences: Sequences[Sequence]) -> tuple[list[int], list[float]]:
        """What `sample` returns, after each request has changed its row."""
        params = [sequence.params for sequence in sequences]
        for row, sequence in enumerate(sequences):
            if sequence.rules is not None:
                with self._alone(sequence):
                    adjust(logits[row].numpy(), sequence, sequence.rules)
        uniforms = [0.0 if sequence.params.greedy else sequence.random.random() for sequence in sequences]
        try:
            return sample(logits, params, uniforms, self._runner.numbers(logits))
        except Exception:  # noqa: BLE001 - of one row: what each row gets does not depend on the others
            token_ids, found = [0] * len(sequences), [math.nan] * len(sequences)
            for row, sequence in enumerate(sequences):
                with self._alone(sequence):
                    one = slice(row, row + 1)
                    token_ids[one], found[one] = sample(logits[one], params[one], uniforms[one])
            return token_ids, found


def greatest(numbers: npt.NDArray[np.float32]) -> tuple[list[int], list[float]]:
    """The token of the greatest logit per row of ``numbers[rows, vocab_size]``, and that logit.

    NaN counts as the greatest.
    """
    token_ids: list[int] = numbers.argmax(-1).tolist()  # up to five times faster than torch's
    return token_ids, [numbers.item(row, token_id) for row, token_id in enumerate(token_ids)]


def sample(
    logits: Tensor,
    params: Sequences[SamplingParams],
    uniforms: Sequences[float],
    numbers: npt.NDArray[np.float32] | None = None,
) -> tuple[list[int], list[float]]:
    """One token id per row of fp32 ``logits[rows, vocab_size]``, and that token's logit.

    ``uniforms`` are numbers in [0, 1), one per row; those of greedy rows are not looked at. Where the
    logit is not finite, the token id means nothing. ``numbers``: the logits for numpy, if the caller has
    them.
    """
    if numbers is None:
        numbers = logits.numpy()
    token_ids, greatest_of = greatest(numbers)
    drawn = [
        row for row, choice in enumerate(params) if not choice.greedy and math.isfinite(greatest_of[row])
    ]
    if not drawn:
        return token_ids, greatest_of
    draws = torch.empty(len(drawn), dtype=torch.int64)
    rows = logits if len(drawn) == len(params) else logits[drawn]
    kernels.sample(draws, rows, _metadata(params, uniforms, drawn))
    for row, token_id in zip(drawn, draws.tolist(), strict=True):
        token_ids[row] = token_id
    return token_ids, numbers[np.arange(len(token_ids)), token_ids].tolist()


def _metadata(
    params: Sequences[SamplingParams], uniforms: Sequences[float], rows: Sequences[int]
) -> SamplingMetadata:
    of_rows = [params[row] for row in rows]
    return SamplingMetadata(
        temperatures=torch.tensor([choice.temperature for choice in of_rows], dtype=torch.float32),
        top_k=torch.tensor([min(choice.top_k, sys.maxsize) for choice in of_rows]),
        top_p=torch.tensor([choice.top_p for choice in of_rows], dtype=torch.float64),
        min_p=torch.tensor([choice.min_p for choice in of_rows], dtype=torch.float64),
        uniforms=torch.tensor([uniforms[row] for row in rows], dtype=torch.float64),
    )
