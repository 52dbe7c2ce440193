"""Parameters of requests for embeddings, classes and scores; names and defaults are vLLM's."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from armllm.errors import RequestError
from armllm.sampling_params import RequestOutputKind, check_integer, only_neutral

POOLING_TASKS = ("embed", "classify", "score", "token_embed", "token_classify", "embed&token_classify")
NO_CLASSES = (
    "a classification needs a model with a classification head (ForSequenceClassification in config.json)"
)
POOLINGS = ("last", "mean", "cls", "max", "mean_sqrt_len", "weightedmean")

# parameters of vLLM's that this engine does not have -> the value that asks for what is done anyway
NEUTRAL_POOLING: dict[str, Any] = {
    "step_tag_id": None,
    "returned_token_ids": None,
    "requires_token_ids": False,
    "skip_reading_prefix_cache": None,
    "late_interaction_params": None,
    "late_chunking_params": None,
    "extra_kwargs": None,
    "output_kind": RequestOutputKind.FINAL_ONLY,
}


@dataclasses.dataclass(kw_only=True)
class PoolingParams:
    """How the hidden states of a prompt's tokens become one embedding.

    - pooling: "last" takes the state of the last token, "cls" that of the first, "mean" the mean of all,
      "max" the largest number in each place. "mean_sqrt_len" divides the sum by the root of the length,
      "weightedmean" weighs each token by its position from 1 on. None means what the checkpoint states; else
      "mean" for encoders and "last" for other models.
    - normalize: scales the vector to length 1; for classes, makes probabilities of the scores.
    - dimensions: cuts the vector to this many leading numbers before it is normalized, for models that are
      trained for it (Kusupati et al. 2022).

    - use_activation: vLLM's name of normalize; it wins if it is set.
    - task: None or "embed", "classify" for the classes of a prompt, or "score" for that of a pair.
      "token_embed" makes a vector of each token, "token_classify" its classes, or its weight (BGE-M3).
      "embed&token_classify" is the embedding, and these weights behind it.
    - second_segment: for encoders, the place of the first token of the second text of a pair, as
      `Tokenizer.encode_pair` returns it. `LLM.score` and `/score` set it themselves.

    vLLM's other parameters are accepted with the values of `NEUTRAL_POOLING`.

    Raises RequestError that names the parameter which is out of range.
    """

    pooling: str | None = None
    normalize: bool = True
    dimensions: int | None = None
    use_activation: bool | None = None
    task: str | None = None
    second_segment: int | None = None
    step_tag_id: dataclasses.InitVar[Any] = None
    returned_token_ids: dataclasses.InitVar[Any] = None
    requires_token_ids: dataclasses.InitVar[Any] = False
    skip_reading_prefix_cache: dataclasses.InitVar[Any] = None
    late_interaction_params: dataclasses.InitVar[Any] = None
    late_chunking_params: dataclasses.InitVar[Any] = None
    extra_kwargs: dataclasses.InitVar[Any] = None
    output_kind: dataclasses.InitVar[Any] = RequestOutputKind.FINAL_ONLY

    def __post_init__(self, *foreign: Any) -> None:
        only_neutral(NEUTRAL_POOLING, foreign)
        if self.use_activation is not None:
            self.normalize = self.use_activation
        check_pooling_task(self.task)
        if self.pooling is not None and self.pooling not in POOLINGS:
            raise RequestError(f"pooling must be one of {', '.join(POOLINGS)}, not {self.pooling!r}")
        if not isinstance(self.normalize, bool):
            raise RequestError(f"normalize must be True or False, not {self.normalize!r}")
        if self.dimensions is not None:
            check_integer("dimensions", self.dimensions, low=1)
        if self.second_segment is not None:
            check_integer("second_segment", self.second_segment, low=1)

    def clone(self) -> PoolingParams:
        """Return a copy."""
        return copy.copy(self)


def check_pooling_task(task: str | None) -> None:
    """Refuse what vLLM makes of a prompt and this engine does not; RequestError says why."""
    if task not in (None, *POOLING_TASKS):
        raise RequestError(f"task can only be one of {', '.join(POOLING_TASKS)} here, not {task!r:.80}")
