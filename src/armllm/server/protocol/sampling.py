"""The sampling fields of completions, chat and responses, and how they become `SamplingParams`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from armllm.errors import RequestError
from armllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from armllm.server.protocol.base import (
    MAX_CHARACTERS,
    MAX_CHOICES,
    MAX_ENTRIES,
    MAX_TOKEN_IDS,
    REQUEST_ID,
    FewStrings,
    Integers,
    Strict,
    WithoutEffect,
    check_size,
    unsupported,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Fields that go to SamplingParams as they are.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "bad_words",
    "ignore_eos",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "allowed_token_ids",
    "skip_special_tokens",
    "include_stop_str_in_output",
)


def _without_duplicates(token_ids: list[int]) -> list[int]:
    return list(dict.fromkeys(token_ids))


TokenIds = Annotated[Integers, Field(max_length=MAX_TOKEN_IDS), AfterValidator(_without_duplicates)]
LogitBias = Annotated[dict[str, float], BeforeValidator(check_size), Field(max_length=MAX_ENTRIES)]


class JsonSchema(Strict):
    """OpenAI's wrapping of a schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None  # the output always follows the schema


class TextFormat(Strict):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


def _no_structural_tag(form: Any) -> Any:
    if isinstance(form, dict) and form.get("type") == "structural_tag":
        raise PydanticCustomError(
            "structural_tag",
            "structural_tag is not supported: use structured_outputs.grammar, or tool_choice for calls",
        )
    return form


ResponseFormat = Annotated[
    Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")],
    BeforeValidator(_no_structural_tag),
]


class StructuredOutputs(Strict):
    """vLLM's ways to say what the output must look like; exactly one is given."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: FewStrings | None = None
    grammar: str | None = None
    json_object: bool | None = None
    # vLLM's other fields, with the values that change nothing
    disable_any_whitespace: bool | None = None  # there is never optional whitespace
    disable_additional_properties: Literal[False] | None = None
    disable_fallback: Literal[False] | None = None
    whitespace_pattern: None = None
    structural_tag: None = None


class Sampling(WithoutEffect):
    """OpenAI's sampling fields and vLLM's additions; None is as good as absent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    best_of: int | None = None
    seed: int | None = None
    stop: str | FewStrings | None = None
    stop_token_ids: TokenIds | None = None
    bad_words: FewStrings | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    allowed_token_ids: TokenIds | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logit_bias: LogitBias | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: FewStrings | None = None
    guided_grammar: str | None = None
    request_id: str | None = Field(None, pattern=REQUEST_ID)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _no_answer_is_dropped(self) -> Sampling:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise unsupported("best_of")
        return self

    def names_for_errors(self) -> dict[str, str]:
        """With the one field that gave the form of the output."""
        forms = ("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar")
        fields = [name for name in forms if getattr(self, name) is not None]
        return super().names_for_errors() | {"structured_outputs": (fields or ["structured_outputs"])[0]}

    def sampling_params(
        self, defaults: SamplingParams, *, max_tokens: int | None, streamed: bool, **changes: Any
    ) -> SamplingParams:
        """``defaults`` are the checkpoint's; RequestError names a field that is out of range."""
        fields = {name: getattr(self, name) for name in SAMPLING if getattr(self, name) is not None}
        for name in ("stop", "bad_words"):
            texts = fields.get(name, ())
            size = len(texts) if isinstance(texts, str) else sum(map(len, texts))
            if size > MAX_CHARACTERS:
                raise RequestError(f"{name} has {size} characters, more than {MAX_CHARACTERS}")
        if self.logit_bias is not None:
            fields["logit_bias"] = _token_biases(self.logit_bias)
        structured = self.structured()
        if structured is not None:
            fields["structured_outputs"] = structured
        kind = RequestOutputKind.DELTA if streamed else RequestOutputKind.FINAL_ONLY
        return dataclasses.replace(
            defaults, **{**fields, "max_tokens": max_tokens, "output_kind": kind, **changes}
        )

    def structured(self) -> StructuredOutputsParams | None:
        """The one constraint on the output's form, if there is one."""
        found = [*self._format(), *self._structured(), *self._guided()]
        if len(found) > 1:
            raise RequestError(
                "response_format, structured_outputs and guided_… exclude each other: give one"
            )
        return StructuredOutputsParams(**found[0]) if found else None

    def _format(self) -> Iterator[dict[str, Any]]:
        if isinstance(self.response_format, JsonObjectFormat):
            yield {"json_object": True}
        elif isinstance(self.response_format, JsonSchemaFormat):
            schema = self.response_format.json_schema.schema_
            if schema is None:
                raise RequestError("response_format: json_schema needs a schema")
            yield {"json": schema}

    def _structured(self) -> Iterator[dict[str, Any]]:
        if self.structured_outputs is not None:
            fields = self.structured_outputs.model_dump(
                by_alias=True, exclude_none=True, exclude={"disable_any_whitespace"}
            )
            yield {name: value for name, value in fields.items() if value is not False}

    def _guided(self) -> Iterator[dict[str, Any]]:
        for name in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{name}")
            if value is not None:
                yield {name: value}


def _token_biases(biases: dict[str, float]) -> dict[int, float]:
    """JSON has only strings as keys."""
    result = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise RequestError(f"logit_bias: {key!r:.40} is not a token id")
        result[int(key)] = bias
    return result
