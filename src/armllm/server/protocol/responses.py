"""/v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from armllm.server.protocol.base import (
    FIRST_ERROR,
    OF_VLLM,
    REQUEST_ID,
    FewStrings,
    Messages,
    Strict,
    WithoutEffect,
)
from armllm.server.protocol.chat import Effort
from armllm.server.protocol.responses_input import InputItem, ToolChoice, Tools
from armllm.server.protocol.sampling import (
    JsonObjectFormat,
    LogitBias,
    StructuredOutputs,
    TextFormat,
    TokenIds,
)

# Fields that mean what they mean in /v1/chat/completions.
AS_IN_CHAT = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "chat_template_kwargs",
    "request_id",
    "priority",
)


class SchemaFormat(Strict):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


TextForm = Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")]


class TextOptions(Strict):
    """What the text must look like."""

    format: TextForm | None = None


class ReasoningOptions(Strict):
    """How much the model should think. There are no summaries."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(WithoutEffect):
    """What /v1/responses takes: text in, text and calls of functions out.

    Nothing is stored, so nothing can be continued. ``max_tool_calls`` counts calls of tools that a server
    runs itself; here are none.
    """

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        **OF_VLLM,
        "previous_response_id": (),
        "conversation": (),
        "background": (False,),
        "include": ([],),
        "prompt": (),
        "prompt_cache_options": ({},),
        "truncation": ("disabled",),
        "top_logprobs": (0,),
        "stream_options": ({},),
        "enable_response_messages": (False,),
        "previous_input_messages": ([],),
        "watermarking": (False,),
        "return_mm_kwargs": (False,),
        "mm_payload": ("tensors",),
        "vllm_xargs": ({},),
        "kv_transfer_params": (),
        "ec_transfer_params": (),
        "spaces_between_special_tokens": (True,),
    }

    input: str | Annotated[list[InputItem], FIRST_ERROR, Messages]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = None
    text: TextOptions | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | FewStrings | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: LogitBias | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: str | None = Field(None, pattern=REQUEST_ID)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)

    def names_for_errors(self) -> dict[str, str]:
        """The fields by the names of /v1/chat/completions, too."""
        renamed = {
            "prompt": "input",
            "messages": "input",
            "max_tokens": "max_output_tokens",
            "structured_outputs": "structured_outputs"
            if self.structured_outputs
            else ("text" if self.text else "tools"),
        }
        return super().names_for_errors() | renamed


class OutputText(TypedDict):
    """A text of the model."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: NotRequired[list[Any]]


class OutputItem(TypedDict):
    """What the model thought or said."""

    type: Literal["message", "reasoning"]
    id: str
    status: NotRequired[str]
    role: NotRequired[Literal["assistant"]]
    content: list[OutputText]
    summary: NotRequired[list[Any]]


class OutputCall(TypedDict):
    """A function that the model calls; ``arguments`` is JSON."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class InputDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class OutputDetails(TypedDict):
    """Number of reasoning tokens; they are not counted apart, so 0."""

    reasoning_tokens: int


class ResponsesUsage(TypedDict):
    """Counted tokens."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class IncompleteDetails(TypedDict):
    """Why a response is incomplete."""

    reason: str


class ResponseObject(TypedDict):
    """The response, complete or not."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem | OutputCall]
    parallel_tool_calls: bool
    previous_response_id: None
    temperature: float | None
    top_p: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    truncation: str
    metadata: dict[str, Any]
    store: bool
    usage: ResponsesUsage | None
