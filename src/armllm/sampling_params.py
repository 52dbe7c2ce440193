"""How to turn logits into tokens, and when to stop."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from armllm.errors import RequestError

# Below this a softmax over logits is a one-hot in fp32 anyway; vLLM draws the line at the same place.
GREEDY_TEMPERATURE = 1e-5


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """What one request asks of the sampler; names and defaults are vLLM's.

    temperature: 0 is greedy. top_p, top_k (0 or -1: all): keep the likeliest tokens; top_k is applied first.
    seed: the same seed gives the same tokens whatever else runs. max_tokens: None is up to the model's
    length. stop: strings that end the text and are cut off, unless include_stop_str_in_output.
    stop_token_ids: tokens that end it; the checkpoint's own end tokens do so too, unless ignore_eos.
    min_tokens: no end before this many tokens. detokenize: False leaves the text empty.

    Raises RequestError (a ValueError) naming the parameter that is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
        self.stop_token_ids = list(self.stop_token_ids or [])
        _check_number("temperature", self.temperature, low=0.0)
        _check_number("top_p", self.top_p, above=0.0, high=1.0)
        _check_integer("top_k", self.top_k, low=-1)
        if self.seed is not None:
            _check_integer("seed", self.seed)
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, low=1)
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop must be a string or a list of non-empty strings, not {self.stop!r}")
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True")
        for token_id in self.stop_token_ids:
            _check_integer("stop_token_ids", token_id, low=0)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken instead of a draw."""
        return self.temperature < GREEDY_TEMPERATURE


def _check_number(
    name: str, value: Any, *, low: float | None = None, above: float | None = None, high: float | None = None
) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if (
        not good
        or (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
    ):
        limits = [f"at least {low}"] if low is not None else []
        limits += [f"above {above}"] if above is not None else []
        limits += [f"at most {high}"] if high is not None else []
        raise RequestError(f"{name} must be a number {' and '.join(limits)}, not {value!r}")


def _check_integer(name: str, value: Any, *, low: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or (low is not None and value < low):
        limit = "" if low is None else f" of at least {low}"
        raise RequestError(f"{name} must be an integer{limit}, not {value!r}")
