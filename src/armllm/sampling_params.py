"""How to turn logits into tokens, and when to stop."""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Below this a softmax over logits is a one-hot in fp32 anyway; vLLM draws the line at the same place.
GREEDY_TEMPERATURE = 1e-5
# Beyond these, logits in fp32 would overflow; a distribution is flat, or one-hot, long before.
MOST, LEAST = 1e6, 1e-6
SEEDS = 1 << 63  # on both sides of 0, as for vLLM's server


class RequestOutputKind(enum.Enum):
    """What the outputs of a running request hold. Names and meanings are vLLM's.

    - CUMULATIVE: all completions, each with everything so far.
    - DELTA: the completions that advanced, each with what is new since the last output.
    - FINAL_ONLY: one output, when the request is finished.
    """

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


# parameters of vLLM's that this engine does not have -> the value that asks for what is done anyway
NEUTRAL: dict[str, Any] = {
    "spaces_between_special_tokens": True,
    "flat_logprobs": False,
    "skip_clone": False,
    "extra_args": None,
    "logits_processors": None,
    "truncate_prompt_tokens": None,
    "stream_interval": None,
    "thinking_token_budget": None,
    "repetition_detection": None,
    "skip_reading_prefix_cache": None,
    "watermarking": None,
    "logprob_token_ids": None,
    "prompt_logprob_token_ids": None,
    "prompt_logprob_start": 0,
    "routed_experts_prompt_start": 0,
    "output_text_buffer_length": 0,
    "trace_decode_token_ids": None,
}
NEUTRAL_FORMS = {
    "disable_additional_properties": False,
    "disable_fallback": False,
    "whitespace_pattern": None,
    "structural_tag": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form of the whole output. Set exactly one field. Names are vLLM's.

    - json: a JSON schema, as a dict or as JSON text.
    - regex: a regular expression in Rust's syntax, without look-around.
    - choice: a list of texts; the output is one of them.
    - grammar: a context-free grammar in Lark's syntax, or in GBNF if it has ``::=``.
    - json_object: True for any JSON object.

    vLLM's other fields are accepted with the values of `NEUTRAL_FORMS`. JSON never has optional whitespace.

    Raises RequestError if not exactly one field is set, or if its value has a wrong type or is empty.
    """

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: dataclasses.InitVar[Any] = False
    disable_additional_properties: dataclasses.InitVar[Any] = False
    disable_fallback: dataclasses.InitVar[Any] = False
    whitespace_pattern: dataclasses.InitVar[Any] = None
    structural_tag: dataclasses.InitVar[Any] = None

    def __post_init__(self, _any_whitespace: Any, *foreign: Any) -> None:  # there is never whitespace
        only_neutral(NEUTRAL_FORMS, foreign)
        constraints = [
            field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None
        ]
        if len(constraints) != 1:
            raise RequestError(
                "structured_outputs must have exactly one of json, regex, choice, grammar and json_object,"
                f" not {' and '.join(constraints) or 'none'}"
            )
        if self.json is not None and not isinstance(self.json, (dict, bool, str)):
            raise RequestError(f"structured_outputs.json must be a schema, not {self.json!r:.80}")
        if self.json_object is not None and self.json_object is not True:
            raise RequestError(f"structured_outputs.json_object must be True, not {self.json_object!r}")
        for name in ("regex", "grammar"):
            text = getattr(self, name)
            if text is not None and not (isinstance(text, str) and text):
                raise RequestError(f"structured_outputs.{name} must be a non-empty text, not {text!r:.80}")
        if self.choice is not None and not (
            isinstance(self.choice, (list, tuple))
            and self.choice
            and all(isinstance(text, str) and text for text in self.choice)
        ):
            raise RequestError(
                f"structured_outputs.choice must be a list of non-empty texts, not {self.choice!r:.80}"
            )


@dataclasses.dataclass(kw_only=True)
class SamplingParams:
    """How one request is sampled. Names, defaults and the order of effects are vLLM's.

    - n: number of completions of the prompt.
    - temperature: 0 is greedy.
    - min_p: keeps tokens that are at least this likely, relative to the likeliest one.
    - top_k: then keeps the likeliest tokens; 0 or -1 keeps all.
    - top_p: then keeps the likeliest tokens until their probabilities add up to this.
    - seed: the same seed gives the same tokens, whatever else runs.
    - repetition_penalty: divides positive logits of tokens in prompt and output, multiplies negative ones.
    - frequency_penalty: subtracted from the logit of a token in the output, once for each occurrence.
    - presence_penalty: subtracted once from the logit of a token in the output.
    - logit_bias: added to the logits, by token id.
    - allowed_token_ids: all other tokens are excluded.
    - bad_words: texts that the output must not have.
    - max_tokens: None means up to the model's length.
    - min_tokens: the output does not end before it has this many.
    - stop: strings that end the text; they are cut off unless include_stop_str_in_output is set.
    - stop_token_ids: tokens that end the text, besides the checkpoint's end tokens.
    - ignore_eos: the checkpoint's end tokens do not end the text.
    - logprobs: for each step, the number of likeliest tokens to report with the sampled one; -1 means all.
    - prompt_logprobs: the same for each token of the prompt.
    - detokenize: False leaves the text empty.
    - skip_special_tokens: leaves special tokens out of the text.
    - structured_outputs: the form that the output must have.
    - output_kind: what the outputs of a stream hold; `LLM.generate` always returns finished outputs.

    vLLM's other parameters are accepted with the values of `NEUTRAL`.

    Raises RequestError (a ValueError) that names the parameter which is out of range.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    spaces_between_special_tokens: dataclasses.InitVar[Any] = True
    flat_logprobs: dataclasses.InitVar[Any] = False
    skip_clone: dataclasses.InitVar[Any] = False
    extra_args: dataclasses.InitVar[Any] = None
    logits_processors: dataclasses.InitVar[Any] = None
    truncate_prompt_tokens: dataclasses.InitVar[Any] = None
    stream_interval: dataclasses.InitVar[Any] = None
    thinking_token_budget: dataclasses.InitVar[Any] = None
    repetition_detection: dataclasses.InitVar[Any] = None
    skip_reading_prefix_cache: dataclasses.InitVar[Any] = None
    watermarking: dataclasses.InitVar[Any] = None
    logprob_token_ids: dataclasses.InitVar[Any] = None
    prompt_logprob_token_ids: dataclasses.InitVar[Any] = None
    prompt_logprob_start: dataclasses.InitVar[Any] = 0
    routed_experts_prompt_start: dataclasses.InitVar[Any] = 0
    output_text_buffer_length: dataclasses.InitVar[Any] = 0
    trace_decode_token_ids: dataclasses.InitVar[Any] = None

    def __post_init__(self, *foreign: Any) -> None:
        only_neutral(NEUTRAL, foreign)
        if self.seed == -1:  # vLLM's other way to say none
            self.seed = None
        self.stop = [self.stop] if isinstance(self.stop, str) else _as_list("stop", self.stop)
        self.stop_token_ids = _as_list("stop_token_ids", self.stop_token_ids)
        self.bad_words = _as_list("bad_words", self.bad_words)
        self._check_ranges()
        self._check_lists()
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise RequestError(f"output_kind must be a RequestOutputKind, not {self.output_kind!r}")
        if self.structured_outputs is not None and not isinstance(
            self.structured_outputs, StructuredOutputsParams
        ):
            raise RequestError(
                f"structured_outputs must be StructuredOutputsParams, not {self.structured_outputs!r:.80}"
            )
        if self.stop and not self.detokenize:
            raise RequestError("stop strings need detokenize=True")
        if self.n > 1 and self.greedy:
            raise RequestError(f"n must be 1 for greedy sampling (temperature 0), not {self.n}")

    def _check_ranges(self) -> None:
        check_integer("n", self.n, low=1)
        _check_number("temperature", self.temperature, low=0.0, high=MOST)
        _check_number("top_p", self.top_p, above=0.0, high=1.0)
        check_integer("top_k", self.top_k, low=-1)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        _check_number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _check_number("repetition_penalty", self.repetition_penalty, low=LEAST, high=MOST)
        check_integer("min_tokens", self.min_tokens, low=0)
        if self.seed is not None:
            check_integer("seed", self.seed, low=-SEEDS, high=SEEDS - 1)
        for name, value, low in (
            ("max_tokens", self.max_tokens, 1),
            ("logprobs", self.logprobs, -1),
            ("prompt_logprobs", self.prompt_logprobs, -1),
        ):
            if value is not None:
                check_integer(name, value, low=low)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}")

    def _check_lists(self) -> None:
        for name in ("stop", "bad_words"):
            texts = getattr(self, name)
            if not all(
                isinstance(text, str) and text.strip(" " if name == "bad_words" else "") for text in texts
            ):
                raise RequestError(f"{name} must be a list of non-empty strings, not {texts!r:.80}")
        _check_token_ids("stop_token_ids", self.stop_token_ids or [])
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _as_list("allowed_token_ids", self.allowed_token_ids)
            _check_token_ids("allowed_token_ids", self.allowed_token_ids)
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids must not be empty")
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise RequestError(f"logit_bias must be a dict of token ids, not {self.logit_bias!r:.80}")
            for token_id, bias in self.logit_bias.items():
                check_integer("logit_bias", token_id, low=0)
                _check_number(f"logit_bias of {token_id}", bias, low=-100.0, high=100.0)

    @classmethod
    def from_optional(cls, **options: Any) -> SamplingParams:
        """Make one of options of which None means the default."""
        return cls(**{name: value for name, value in options.items() if value is not None})

    def clone(self) -> SamplingParams:
        """Return a copy that shares no list or dict with this one."""
        return copy.deepcopy(self)

    @property
    def greedy(self) -> bool:
        """Whether each step takes the likeliest token and draws none."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token has one or more objects in the answer."""
        return self.logprobs is not None or self.prompt_logprobs is not None

    @property
    def streams(self) -> bool:
        """Whether the request has outputs before it is finished."""
        return self.output_kind is not RequestOutputKind.FINAL_ONLY

    @property
    def adjusts_logits(self) -> bool:
        """Whether a parameter other than temperature, top_k, top_p and min_p changes the logits."""
        return bool(
            self.logit_bias
            or self.bad_words
            or self.min_tokens
            or self.allowed_token_ids is not None
            or self.structured_outputs is not None
            or self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
        )

    @property
    def num_entries(self) -> int:
        """The number of entries of its lists, which the time to check them depends on."""
        lists = (self.stop, self.bad_words, self.stop_token_ids, self.allowed_token_ids, self.logit_bias)
        return sum(len(entries) for entries in lists if entries)

    def token_ids(self) -> dict[str, list[int]]:
        """Return the token ids of each parameter that has some; the vocabulary must contain them."""
        return {
            "stop_token_ids": self.stop_token_ids or [],
            "allowed_token_ids": self.allowed_token_ids or [],
            "logit_bias": list(self.logit_bias or {}),
        }


@dataclasses.dataclass
class BeamSearchParams:
    """How `LLM.beam_search` searches. Names and defaults are vLLM's.

    - beam_width: number of beams, and of sequences that are returned.
    - max_tokens: output tokens at most.
    - ignore_eos: the checkpoint's end tokens do not end a beam.
    - temperature: 0; beams are compared by the model's own probabilities.
    - length_penalty: the exponent of the length by which a beam's log-probability is divided.
    - skip_special_tokens: leaves special tokens out of the text.

    Raises RequestError that names the parameter which is out of range.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    skip_special_tokens: bool = True
    watermarking: dataclasses.InitVar[Any] = None
    allowed_token_ids: dataclasses.InitVar[Any] = None

    def __post_init__(self, *foreign: Any) -> None:
        only_neutral({"watermarking": None, "allowed_token_ids": None}, foreign)
        check_integer("beam_width", self.beam_width, low=1)
        check_integer("max_tokens", self.max_tokens, low=1)
        _check_number("length_penalty", self.length_penalty, low=-10.0, high=10.0)
        if self.temperature != 0:
            raise RequestError(f"temperature of a beam search can only be 0 here, not {self.temperature!r}")
        if self.include_stop_str_in_output or self.structured_outputs is not None:
            raise RequestError("a beam search has no stop strings and no structured_outputs here")


def only_neutral(neutral: dict[str, Any], values: Iterable[Any]) -> None:
    """Refuse a parameter of vLLM's whose value asks for something else than what is done anyway."""
    for (name, expected), value in zip(neutral.items(), values, strict=True):
        if value is not expected and (value or expected):
            raise RequestError(f"{name} can only be {expected!r} here, not {value!r:.80}")


def _as_list(name: str, values: Any) -> list[Any]:
    if values is not None and not isinstance(values, (list, tuple, set, frozenset)):
        raise RequestError(f"{name} must be a list, not {values!r:.80}")
    return list(values or [])


def _check_number(
    name: str, value: Any, *, low: float | None = None, above: float = -math.inf, high: float
) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN is on neither side of anything
    if not (good and value <= high and (value >= low if low is not None else value > above)):
        least = f"at least {low:g}" if low is not None else f"above {above:g}"
        raise RequestError(f"{name} must be a number {least} and at most {high:g}, not {value!r:.80}")


def _check_token_ids(name: str, token_ids: list[Any]) -> None:
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0:  # a tenth of the time of what follows
        return
    for token_id in token_ids:
        check_integer(name, token_id, low=0)


def check_integer(name: str, value: Any, *, low: int, high: int | None = None) -> None:
    good = isinstance(value, int) and not isinstance(value, bool)
    if not (good and value >= low and (high is None or value <= high)):
        most = "" if high is None else f" and at most {high}"
        raise RequestError(f"{name} must be an integer of at least {low}{most}, not {value!r:.80}")
