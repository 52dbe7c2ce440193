"""Logits to token ids.

A draw is the inverse of the cumulative distribution, over token ids in their own order, at one uniform number
that the request's own generator gives. Whatever shares the batch, a row is worked on alone, and rounding
moves the borders between tokens by about 1e-7, so the same seed gives the same tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from torch import Tensor

    from armllm.sampling_params import SamplingParams

CHUNK = 256


@torch.inference_mode()
def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token id per row of fp32 ``logits[rows, vocab_size]``, and the greatest logit of the row.

    ``uniforms`` are numbers in [0, 1), one per row; those of greedy rows are not looked at. Where the
    greatest logit is not finite (NaN counts as the greatest), the token id means nothing.
    """
    greatest, token_ids = logits.max(-1)
    greatest_of: list[float] = greatest.tolist()
    drawn = [
        row for row, choice in enumerate(params) if not choice.greedy and math.isfinite(greatest_of[row])
    ]
    if drawn:
        temperatures = torch.tensor([params[row].temperature for row in drawn], dtype=torch.float32)
        scaled = logits[drawn] / temperatures.unsqueeze(1)
        thresholds = [_threshold(scaled[index].numpy(), params[row]) for index, row in enumerate(drawn)]
        token_ids[drawn] = _draw(scaled, thresholds, torch.tensor([uniforms[row] for row in drawn]).double())
    result: list[int] = token_ids.tolist()
    return result, greatest_of


def _threshold(logits: npt.NDArray[np.float32], params: SamplingParams) -> float:
    """The least logit that min_p, then top_k, then top_p leave; tokens that tie with it stay too."""
    vocab_size = len(logits)
    top_k = params.top_k if 0 < params.top_k < vocab_size else vocab_size
    least = -math.inf
    if params.min_p > 0:
        least = float(logits.max()) + math.log(params.min_p)
    if params.top_p >= 1:
        return least if top_k == vocab_size else max(least, np.partition(logits, -top_k)[-top_k].item())
    likeliest = logits if top_k == vocab_size else np.partition(logits, -top_k)[-top_k:]
    falling = np.sort(likeliest)[::-1]
    falling = falling[: max(1, np.count_nonzero(falling >= least))]
    sums = np.exp(falling - falling[0]).cumsum(dtype=np.float64)
    # a token stays if those before it don't make up the mass yet
    kept = 1 + np.searchsorted(sums[:-1], params.top_p * sums[-1], side="left")
    last: float = falling[kept - 1].item()
    return last


def _draw(logits: Tensor, thresholds: Sequence[float], uniforms: Tensor) -> Tensor:
    """Find the chunk of the vocabulary first, then the token in it, both by fp64 sums of weights."""
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()
    rows, vocab_size = weights.shape
    if any(threshold > -math.inf for threshold in thresholds):
        weights.masked_fill_(logits < torch.tensor(thresholds).unsqueeze(1), 0.0)
    chunks = torch.nn.functional.pad(weights, (0, -vocab_size % CHUNK)).view(rows, -1, CHUNK)
    sums = chunks.sum(-1, dtype=torch.float64)
    chunk, before = _invert(sums, uniforms * sums.sum(-1))
    within = chunks[torch.arange(rows), chunk].double()
    offset, _ = _invert(within, uniforms * sums.sum(-1) - before)
    return chunk * CHUNK + offset


def _invert(weights: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Per row, the first index where the cumulative weight exceeds the target, and the weight before it.

    Never an index of weight zero, even where rounding puts a target at the very end.
    """
    sums = weights.cumsum(-1)
    last = weights.shape[-1] - 1 - weights.flip(-1).ne(0).int().argmax(-1)
    index = torch.minimum((sums <= targets.unsqueeze(1)).sum(-1), last)
    return index, (sums - weights).gather(1, index.unsqueeze(1)).squeeze(1)
