"""How likely the tokens of a prompt were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.engine.logprobs import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.outputs import Logprob
    from armllm.tokenizer import Tokenizer

# Logits of a large vocabulary take half a megabyte per token.
ROWS_AT_ONCE = 64


class PromptLogprobs:
    """How likely each token of the prompt was, after those before it; computed chunk by chunk.

    After a preemption the sequence starts again, and what was reported before is not reported again.
    """

    def __init__(self, token_ids: list[int], count: int, tokenizer: Tokenizer | None) -> None:
        self._token_ids = token_ids
        self._count = count
        self._tokenizer = tokenizer
        self.described: list[dict[int, Logprob] | None] = [None]

    @property
    def needs_every_token(self) -> bool:
        """Until all are known; a sequence that is preempted later may come back from the cache."""
        return len(self.described) < len(self._token_ids)

    def read(self, first: int, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
        """Take ``hidden[rows, hidden_size]``, the final states of the tokens from position ``first`` on.

        Each predicts the token after it; ``logits`` turns states into fp32 scores of the vocabulary.
        """
        start = len(self.described) - 1 - first
        stop = min(len(hidden), len(self._token_ids) - 1 - first)
        for row in range(start, stop, ROWS_AT_ONCE):
            logprobs = logits(hidden[row : min(row + ROWS_AT_ONCE, stop)]).log_softmax(-1)
            for index, values in enumerate(logprobs):
                token_id = self._token_ids[first + row + index + 1]
                self.described.append(describe(values, token_id, self._count, self._tokenizer))
