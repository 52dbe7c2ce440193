"""/v1/chat/completions."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from typing_extensions import NotRequired, TypedDict

from armllm.server.protocol.base import FIRST_ERROR, Conversations, Messages, Objects, Strict, check_size
from armllm.server.protocol.completions import UNSUPPORTED, StreamOptions, Usage
from armllm.server.protocol.sampling import Sampling

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Document = Annotated[dict[str, str], BeforeValidator(check_size)]


class Message(BaseModel):
    """What someone said; fields beyond these go to the chat template, which may know them."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: str = Field(min_length=1)
    content: str | Objects | None = None
    tool_calls: Objects | None = None


Conversation = Annotated[list[Message], FIRST_ERROR, Field(min_length=1)]


class Function(Strict):
    """A function that the model may call; ``parameters`` is a JSON schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """A tool; the only kind is a function."""

    type: Literal["function"]
    function: Function


class NamedFunction(Strict):
    """The name of a function."""

    name: str


class NamedTool(Strict):
    """The tool that the model must call."""

    type: Literal["function"]
    function: NamedFunction


class TemplateOptions(Strict):
    """What a chat template gets beside the messages."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(check_size)] | None = None
    documents: Annotated[list[Document], FIRST_ERROR] | None = None
    reasoning_effort: Effort | None = None


class ChatOptions(Sampling, TemplateOptions):
    """What a conversation and a batch of them have in common: OpenAI's fields, and vLLM's additions."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        **UNSUPPORTED,
        "audio": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
        "verbosity": (),
        "functions": ([],),
        "function_call": ("none",),
        "chat_template": (),
        "echo": (False,),
    }

    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    include_reasoning: bool | None = None

    def names_for_errors(self) -> dict[str, str]:
        """The prompt is made of messages, and the most tokens have two names."""
        newer = self.max_completion_tokens is not None
        most = {"max_tokens": "max_completion_tokens"} if newer else {}
        likeliest = {"logprobs": "top_logprobs"} if self.top_logprobs is not None else {}
        return super().names_for_errors() | {"prompt": "messages"} | most | likeliest


class ChatRequest(ChatOptions):
    """What /v1/chat/completions takes."""

    messages: Annotated[list[Message], FIRST_ERROR, Messages] = Field(min_length=1)
    prompt_logprobs: int | None = Field(None, ge=0)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], FIRST_ERROR] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class ChatBatchRequest(ChatOptions):
    """What /v1/chat/completions/batch takes: a list of conversations, each with one text as answer."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        **ChatOptions.unsupported,
        "n": (1,),
        "stream": (False,),
        "stream_options": (),
        "tools": ([],),
        "tool_choice": ("none",),
        "parallel_tool_calls": (True, False),
        "prompt_logprobs": (),
        "guided_decoding_backend": (),
    }

    messages: Annotated[list[Conversation], FIRST_ERROR, Conversations] = Field(min_length=1)

    def conversations(self) -> list[ChatRequest]:
        """Each as a request of its own, with its place in the batch at the end of its id."""
        shared = {name: getattr(self, name) for name in ChatOptions.model_fields if name != "request_id"}
        batch_id = self.request_id or uuid.uuid4().hex
        return [
            ChatRequest.model_construct(**shared, messages=messages, request_id=f"{batch_id}-{index}")
            for index, messages in enumerate(self.messages)
        ]


class TopLogprob(TypedDict):
    """A likely token; ``bytes`` are its UTF-8, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The chosen token, and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    """The tokens of a choice."""

    content: list[TokenLogprob]


class CalledFunction(TypedDict):
    """A function and the JSON text of its arguments."""

    name: NotRequired[str]
    arguments: str


class ToolCall(TypedDict):
    """A call, or in a stream a piece of one: the first has id, type and name."""

    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    index: NotRequired[int]
    function: CalledFunction


class AssistantMessage(TypedDict):
    """What the model says; in a stream, what is new of it."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    refusal: NotRequired[None]
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int]]


class ChatCompletion(TypedDict):
    """The answer to a request that is not streamed."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]


class ChatChunkChoice(TypedDict):
    """A piece of one answer."""

    index: int
    delta: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int]]


class ChatChunk(TypedDict):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | None
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[list[int]]
