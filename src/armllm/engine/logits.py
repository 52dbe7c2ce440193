"""What a request does to its logits before a token is chosen: bias, bans, penalties, grammars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt
    from torch import Tensor

    from armllm.engine.sequence import Sequence

BANNED = -math.inf


def adjust(logits: Tensor, sequences: Sequences[Sequence]) -> None:
    """Change fp32 ``logits[rows, vocab_size]`` in place, a row per sequence, in vLLM's order of effects."""
    for row, sequence in enumerate(sequences):
        if sequence.params.adjusts_logits:
            _adjust_row(logits[row].numpy(), sequence)


def _adjust_row(logits: npt.NDArray[np.float32], sequence: Sequence) -> None:
    params = sequence.params
    if params.allowed_token_ids is not None:
        allowed = logits[params.allowed_token_ids]
        logits[:] = BANNED
        logits[params.allowed_token_ids] = allowed
    for banned in sequence.bad_words:
        *before, last = banned
        tail = sequence.token_ids[sequence.num_tokens - len(before) :].tolist()
        if sequence.num_output_tokens >= len(before) and tail == before:
            logits[last] = BANNED
    if sequence.num_output_tokens < params.min_tokens:
        logits[[*sequence.end_token_ids, *(params.stop_token_ids or ())]] = BANNED
    for token_id, bias in (params.logit_bias or {}).items():
        logits[token_id] += bias
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(sequence.token_ids))
        at = logits[seen]
        logits[seen] = np.where(at > 0, at / params.repetition_penalty, at * params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        said, counts = np.unique(
            np.asarray(sequence.token_ids[sequence.num_prompt_tokens :]), return_counts=True
        )
        logits[said] -= params.frequency_penalty * counts.astype(np.float32) + params.presence_penalty
    if sequence.matcher is not None:
        logits[sequence.matcher.banned(len(logits))] = BANNED
