"""Logits to token ids.

A draw is the inverse of the cumulative distribution, over token ids in their own order, at one uniform number
that the request's own generator gives. Whatever shares the batch, a row is worked on alone, and rounding
moves the borders between tokens by about 1e-7, so the same seed gives the same tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.sampling_params import SamplingParams

FIRST_CANDIDATES = 256
CHUNK = 256


@torch.inference_mode()
def sample(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """One token id per row of fp32 ``logits[rows, vocab_size]``.

    ``uniforms`` are numbers in [0, 1), one per row; those of greedy rows are not looked at.
    """
    token_ids = logits.argmax(-1)
    drawn = [row for row, choice in enumerate(params) if not choice.greedy]
    filtered = [row for row in drawn if params[row].top_k > 0 or params[row].top_p < 1]
    plain = [row for row in drawn if params[row].top_k <= 0 and params[row].top_p >= 1]
    for rows, draw in ((plain, _draw), (filtered, _draw_filtered)):
        if rows:
            temperatures = torch.tensor([params[row].temperature for row in rows], dtype=torch.float32)
            scaled = logits[rows] / temperatures.unsqueeze(1)
            chosen = [params[row] for row in rows]
            at = torch.tensor([uniforms[row] for row in rows], dtype=torch.float64)
            token_ids[rows] = draw(scaled, chosen, at)
    result: list[int] = token_ids.tolist()
    return result


def _draw(logits: Tensor, _params: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """From all tokens: find the chunk of the vocabulary first, then the token in it, both in fp64 sums."""
    weights = (logits - logits.amax(-1, keepdim=True)).exp_()
    rows, vocab_size = weights.shape
    chunks = torch.nn.functional.pad(weights, (0, -vocab_size % CHUNK)).view(rows, -1, CHUNK)
    sums = chunks.sum(-1, dtype=torch.float64).cumsum(-1)
    targets = uniforms.unsqueeze(1) * sums[:, -1:]
    chunk = (sums <= targets).sum(-1, keepdim=True).clamp_(max=sums.shape[1] - 1)
    before = torch.where(chunk > 0, sums.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    within = chunks[torch.arange(rows), chunk.squeeze(1)].double()
    offset = _invert(within, targets - before)
    return chunk.squeeze(1) * CHUNK + offset


def _draw_filtered(logits: Tensor, params: Sequence[SamplingParams], uniforms: Tensor) -> Tensor:
    """From the tokens that top_k, then top_p, leave; tokens as likely as the last one left stay too.

    Sorting a whole vocabulary costs more than the model's own head, so the likeliest few are looked at first,
    and more only when they are not enough.
    """
    vocab_size = logits.shape[1]
    top_k = torch.tensor([choice.top_k if choice.top_k > 0 else vocab_size for choice in params])
    top_k = top_k.clamp_(max=vocab_size).unsqueeze(1)
    top_p = torch.tensor([choice.top_p for choice in params], dtype=torch.float64).unsqueeze(1)
    peak = logits.amax(-1, keepdim=True)
    total = (logits - peak).exp_().sum(-1, keepdim=True, dtype=torch.float64)
    largest_k = max((choice.top_k for choice in params if choice.top_k > 0), default=0)
    count = min(vocab_size, max(FIRST_CANDIDATES, largest_k + 1))
    while True:
        values, token_ids = logits.topk(count, sorted=True)
        weights = (values - peak).exp_().double()
        sums = weights.cumsum(-1)
        mass = torch.where(top_k < vocab_size, sums.gather(1, (top_k - 1).clamp(max=count - 1)), total)
        ranks = torch.arange(count)
        kept = (ranks < top_k) & ((sums - weights < top_p * mass) | (ranks == 0))
        threshold = values.gather(1, kept.sum(-1, keepdim=True) - 1)
        if count == vocab_size or bool((values[:, -1:] < threshold).all()):
            break
        count = min(vocab_size, count * 8)
    token_ids, order = token_ids.sort(-1)
    weights = torch.where(values >= threshold, weights, 0.0).gather(1, order)
    chosen = _invert(weights, uniforms.unsqueeze(1) * weights.sum(-1, keepdim=True))
    return token_ids.gather(1, chosen.unsqueeze(1)).squeeze(1)


def _invert(weights: Tensor, targets: Tensor) -> Tensor:
    """Per row, the first index whose cumulative weight exceeds the target; never one of weight zero."""
    sums = weights.cumsum(-1)
    last = weights.shape[-1] - 1 - weights.flip(-1).ne(0).int().argmax(-1)
    return torch.minimum((sums <= targets).sum(-1), last)
