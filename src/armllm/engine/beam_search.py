"""Beam search over an engine that returns log-probabilities: each step extends all beams by one token."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from tqdm import tqdm

from armllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from armllm.outputs import Logprob, RequestOutput
    from armllm.sampling_params import BeamSearchParams

    Generate = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]


@dataclasses.dataclass
class BeamSearchSequence:
    """One beam.

    - tokens: ids of the prompt and the output, with the end token if there is one.
    - logprobs: for each token of the output, the likeliest ones of its step.
    - cum_logprob: the sum of the output tokens' log-probabilities.
    - text: the text of ``tokens``.
    """

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def score(self, length_penalty: float) -> float:
        """The log-probability over the number of tokens, prompt included, to the power of the penalty."""
        length = len(self.tokens) - (self.finish_reason == "stop")
        penalty: float = max(length, 1) ** length_penalty
        return self.cum_logprob / penalty


@dataclasses.dataclass
class BeamSearchOutput:
    """The ``beam_width`` best sequences of a prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclasses.dataclass
class _Search:
    """The search for one prompt."""

    beams: list[BeamSearchSequence]
    room: int  # tokens that the model's length leaves
    completed: list[BeamSearchSequence] = dataclasses.field(default_factory=list)

    def extend(
        self, outputs: Iterable[RequestOutput], params: BeamSearchParams, ends: frozenset[int]
    ) -> None:
        """Replace the beams by the best of their continuations; what ends is completed."""
        open_beams = []
        for beam, output in zip(self.beams, outputs, strict=True):
            (step,) = output.outputs[0].logprobs or [{}]
            for token_id, logprob in step.items():
                extended = BeamSearchSequence(
                    [*beam.tokens, token_id], [*beam.logprobs, step], beam.cum_logprob + logprob.logprob
                )
                if token_id in ends and not params.ignore_eos:
                    extended.finish_reason = "stop"
                    self.completed.append(extended)
                else:
                    open_beams.append(extended)
        self.room -= 1
        self.beams = _best(open_beams, params)
        if self.room == 0:
            self.finish()

    def finish(self) -> None:
        """Complete what is still open."""
        for beam in self.beams:
            beam.finish_reason = "length"
        self.completed += self.beams
        self.beams = []


def search(
    prompts: Sequence[list[int]],
    params: BeamSearchParams,
    generate: Generate,
    *,
    end_token_ids: frozenset[int],
    max_model_len: int,
    use_tqdm: bool,
) -> list[BeamSearchOutput]:
    """The best sequences of each prompt (token ids); all beams of a step run in one batch.

    A step looks at 2 * beam_width continuations of each beam, so that beams that end leave enough others.
    """
    one_token = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=2 * params.beam_width, detokenize=False
    )
    searches = [
        _Search([BeamSearchSequence(list(prompt), [])], min(params.max_tokens, max_model_len - len(prompt)))
        for prompt in prompts
    ]
    for _ in tqdm(range(params.max_tokens), desc="Beam search", unit="token", disable=not use_tqdm):
        active = [one for one in searches if one.beams]
        if not active:
            break
        outputs = iter(generate([beam.tokens for one in active for beam in one.beams], one_token))
        for one in active:
            one.extend(itertools.islice(outputs, len(one.beams)), params, end_token_ids)
    return [BeamSearchOutput(_best(one.completed, params)) for one in searches]


def _best(beams: list[BeamSearchSequence], params: BeamSearchParams) -> list[BeamSearchSequence]:
    ordered = sorted(beams, key=lambda beam: beam.score(params.length_penalty), reverse=True)
    return ordered[: params.beam_width]
