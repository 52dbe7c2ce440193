"""How likely the chosen tokens were, and which were likelier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from armllm.outputs import Logprob

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from armllm.sampling_params import SamplingParams
    from armllm.tokenizer import Tokenizer


def raw_logprobs(logits: Tensor, params: Sequence[SamplingParams]) -> dict[int, Tensor]:
    """Log-softmax of the rows whose requests want logprobs, before bias, penalties and temperature."""
    rows = [row for row, wanted in enumerate(params) if wanted.logprobs is not None]
    if not rows:
        return {}
    return dict(zip(rows, logits[rows].log_softmax(-1), strict=True))


def describe(logprobs: Tensor, token_id: int, count: int, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """The chosen token and the ``count`` likeliest ones (-1: all) of one row ``logprobs[vocab_size]``."""
    numbers = logprobs.numpy()
    logprob = numbers[token_id]
    top = logprobs.topk(len(logprobs) if count == -1 else min(count, len(logprobs)))
    ranked = {token_id: (logprob.item(), int(np.count_nonzero(numbers > logprob)) + 1)}
    for rank, (other, value) in enumerate(
        zip(top.indices.tolist(), top.values.tolist(), strict=True), start=1
    ):
        ranked.setdefault(other, (value, rank))
    return {
        token: Logprob(
            logprob=value,
            rank=rank,
            decoded_token=tokenizer.spell(token) if tokenizer else None,
        )
        for token, (value, rank) in ranked.items()
    }
