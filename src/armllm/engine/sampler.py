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
REACHES = (4.0, 10.0, 20.0)  # below the greatest logit, where most of the mass is looked for


def sample(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """One token id per row of fp32 ``logits[rows, vocab_size]``, and that token's logit.

    ``uniforms`` are numbers in [0, 1), one per row; those of greedy rows are not looked at. Where the
    logit is not finite (NaN counts as the greatest), the token id means nothing.
    """
    numbers = logits.numpy()
    best = numbers.argmax(-1)  # up to five times faster than torch's
    greatest_of: list[float] = numbers[np.arange(len(best)), best].tolist()
    drawn = [
        row for row, choice in enumerate(params) if not choice.greedy and math.isfinite(greatest_of[row])
    ]
    token_ids: list[int] = best.tolist()
    if not drawn:
        return token_ids, greatest_of
    for row, token_id in zip(drawn, _draw_rows(logits, params, uniforms, drawn), strict=True):
        token_ids[row] = token_id
    return token_ids, numbers[np.arange(len(token_ids)), token_ids].tolist()


@torch.inference_mode()
def _draw_rows(
    logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float], drawn: list[int]
) -> list[int]:
    rows = slice(None) if len(drawn) == len(params) else drawn
    temperatures = torch.tensor([params[row].temperature for row in drawn], dtype=torch.float32)
    scaled = _scaled(logits[rows], temperatures)
    vocab_size = logits.shape[1]
    thresholds = [
        _threshold(scaled[index, :vocab_size].numpy(), params[row]) for index, row in enumerate(drawn)
    ]
    draws = _draw(scaled, thresholds, torch.tensor([uniforms[row] for row in drawn]).double())
    token_ids: list[int] = draws.tolist()
    return token_ids


def _scaled(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Logits over temperatures, in whole chunks: what is beyond the vocabulary has no weight."""
    rows, vocab_size = logits.shape
    scaled = torch.empty(rows, -(-vocab_size // CHUNK) * CHUNK)
    torch.div(logits, temperatures.unsqueeze(1), out=scaled[:, :vocab_size])
    scaled[:, vocab_size:] = -math.inf
    return scaled


def _threshold(logits: npt.NDArray[np.float32], params: SamplingParams) -> float:
    """The least logit that min_p, then top_k, then top_p leave; tokens that tie with it stay too."""
    vocab_size = len(logits)
    top_k = params.top_k if 0 < params.top_k < vocab_size else vocab_size
    if params.min_p <= 0 and top_k == vocab_size and params.top_p >= 1:
        return -math.inf
    greatest = float(logits.max())
    least = greatest + math.log(params.min_p) if params.min_p > 0 else -math.inf
    likeliest = logits
    if top_k < vocab_size:
        candidates = _candidates(logits, top_k)
        likeliest = np.partition(candidates, -top_k)[-top_k:]
        if params.top_p >= 1:
            return max(least, float(likeliest[0]))
    if params.top_p >= 1:
        return least
    if least > -math.inf:
        likeliest = likeliest[likeliest >= np.float32(min(least, greatest))]
    total = np.exp(likeliest - greatest).sum(dtype=np.float64)
    falling = np.sort(_most(likeliest, greatest, params.top_p * total))[::-1]
    sums = np.exp(falling - greatest).cumsum(dtype=np.float64)
    # a token stays if those before it don't make up the mass yet
    nucleus_size = 1 + np.searchsorted(sums[:-1], params.top_p * total, side="left")
    last: float = falling[nucleus_size - 1].item()
    return last


def _candidates(logits: npt.NDArray[np.float32], count: int) -> npt.NDArray[np.float32]:
    """All that can be among the ``count`` greatest: at least as many chunks have a maximum not below them."""
    whole = len(logits) // CHUNK
    if whole < count:
        return logits
    maxima = logits[: whole * CHUNK].reshape(whole, CHUNK).max(-1)
    enough: npt.NDArray[np.float32] = logits[logits >= np.partition(maxima, -count)[-count]]
    return enough


def _most(logits: npt.NDArray[np.float32], greatest: float, mass: float) -> npt.NDArray[np.float32]:
    """The likeliest tokens, enough to make up the mass: few in a trained model, and fewer to sort."""
    for distance in REACHES:
        near: npt.NDArray[np.float32] = logits[logits >= np.float32(greatest - distance)]
        if np.exp(near - greatest).sum(dtype=np.float64) >= mass:
            return near
    return logits


def _draw(logits: Tensor, thresholds: Sequence[float], uniforms: Tensor) -> Tensor:
    """Find the chunk of the vocabulary first, then the token in it, by fp64 sums over chunks and weights.

    ``logits`` are in whole chunks and become their weights, in place: a large batch's are larger than caches.
    """
    if any(threshold > -math.inf for threshold in thresholds):
        logits.masked_fill_(logits < torch.tensor(thresholds).unsqueeze(1), -math.inf)
    rows = len(logits)
    chunks = logits.sub_(logits.amax(-1, keepdim=True)).exp_().view(rows, -1, CHUNK)
    sums = chunks.sum(-1).double()
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
