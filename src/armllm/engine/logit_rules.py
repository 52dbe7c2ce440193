"""The biases and bans of a request, prepared once for all its steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt

    from armllm.sampling_params import SamplingParams


@dataclasses.dataclass(slots=True)
class BadWords:
    """A node of the tree of bad words, which are read from their last token but one to their first.

    ``banned`` are the tokens that would complete a word whose other tokens lead to this node.
    """

    banned: list[int] = dataclasses.field(default_factory=list)
    longer: dict[int, BadWords] = dataclasses.field(default_factory=dict)

    def add(self, word: Sequences[int]) -> None:
        """Take one more word, as token ids."""
        node = self
        for token_id in reversed(word[:-1]):
            node = node.longer.setdefault(token_id, BadWords())
        node.banned.append(word[-1])

    def completing(self, output: Sequences[int]) -> list[int]:
        """The tokens that must not follow ``output``, at the cost of the longest word."""
        found, node = list(self.banned), self
        for token_id in reversed(output):
            following = node.longer.get(token_id)
            if following is None:
                break
            found += following.banned
            node = following
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class LogitRules:
    """What bias and bans of a request come down to, prepared once for all steps of all its sequences.

    Token ids without repetitions: ``allowed`` (None: all), ``biased`` with ``biases`` and ``ends``, which are
    banned before ``min_tokens``.
    """

    allowed: npt.NDArray[np.int64] | None
    biased: npt.NDArray[np.int64]
    biases: npt.NDArray[np.float32]
    ends: npt.NDArray[np.int64]
    bad_words: BadWords

    @classmethod
    def of(
        cls, params: SamplingParams, end_token_ids: Iterable[int], bad_words: Iterable[Sequences[int]]
    ) -> LogitRules:
        """From the parameters, the tokens that end a text, and the token ids of the bad words."""
        tree = BadWords()
        for word in bad_words:
            tree.add(word)
        biases = params.logit_bias or {}
        return cls(
            allowed=None if params.allowed_token_ids is None else np.unique(params.allowed_token_ids),
            biased=np.array(list(biases), dtype=np.int64),
            biases=np.array(list(biases.values()), dtype=np.float32),
            ends=np.array(sorted({*end_token_ids, *(params.stop_token_ids or ())}), dtype=np.int64),
            bad_words=tree,
        )
