"""What a request does to its logits before a token is chosen: bias, bans, penalties, grammars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from armllm.engine.logit_rules import LogitRules
    from armllm.engine.sequence import Sequence

BANNED = -math.inf


def adjust(logits: npt.NDArray[np.float32], sequence: Sequence, rules: LogitRules) -> None:
    """Change the fp32 ``logits[vocab_size]`` of one sequence in place, in vLLM's order of effects."""
    params = sequence.params
    if rules.allowed is not None:
        allowed = logits[rules.allowed]
        logits[:] = BANNED
        logits[rules.allowed] = allowed
    if params.bad_words:
        output = sequence.token_ids[sequence.num_prompt_tokens :]
        logits[rules.bad_words.completing(output)] = BANNED
    if sequence.num_output_tokens < params.min_tokens:
        logits[rules.ends] = BANNED
    logits[rules.biased] += rules.biases
    if params.repetition_penalty != 1.0:
        seen = np.asarray(sequence.token_ids)  # with repetitions, which write the same number again
        at = logits[seen]
        logits[seen] = np.where(at > 0, at / params.repetition_penalty, at * params.repetition_penalty)
    if params.frequency_penalty or params.presence_penalty:
        output_ids, counts = np.unique(
            np.asarray(sequence.token_ids[sequence.num_prompt_tokens :]), return_counts=True
        )
        logits[output_ids] -= params.frequency_penalty * counts.astype(np.float32) + params.presence_penalty
    if sequence.matcher is not None:
        logits[sequence.matcher.banned(len(logits))] = BANNED
