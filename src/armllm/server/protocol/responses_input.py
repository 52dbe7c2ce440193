"""What goes into /v1/responses: messages, earlier thoughts and calls with their results, and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from armllm.server.protocol.base import FIRST_ERROR, Strict
from armllm.server.protocol.chat import Function, NamedFunction


def _kind(item: Any) -> Any:
    return item.get("type") if isinstance(item, dict) else getattr(item, "type", None)


class TextPart(Strict):
    """A piece of text, said to or by the model."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class PicturePart(Strict):
    """A picture, as a data URL or, where the server allows it, an address; ``detail`` has no effect."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["low", "high", "auto", "original"] | None = None


# In capitals, so that they are no part of the path of a field in an error.
_PARTS = {"input_text": "TEXT", "output_text": "TEXT", "text": "TEXT", "input_image": "PICTURE"}
Part: TypeAlias = Annotated[
    Annotated[TextPart, Tag("TEXT")] | Annotated[PicturePart, Tag("PICTURE")],
    Discriminator(
        lambda part: _PARTS.get(str(_kind(part))),
        custom_error_type="part_type",
        custom_error_message=f"its type can only be {', '.join(_PARTS)}",
    ),
]
Texts: TypeAlias = str | Annotated[list[TextPart], FIRST_ERROR]


class InputMessage(Strict):
    """What someone said; an earlier answer can be given back as it came."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Part], FIRST_ERROR]
    id: str | None = None
    status: str | None = None


class ReasoningText(Strict):
    """A piece of a thought."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(Strict):
    """What the model thought before; encrypted thoughts cannot be read here."""

    type: Literal["reasoning"]
    summary: list[Any] | None = None
    content: Annotated[list[ReasoningText], FIRST_ERROR] | None = None
    encrypted_content: None = None
    id: str | None = None
    status: str | None = None


class InputCall(Strict):
    """A call that the model made; ``arguments`` is JSON."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: str | None = None


class CallResult(Strict):
    """What the called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Texts
    id: str | None = None
    status: str | None = None


_TAGS = {
    "message": "MESSAGE",
    "reasoning": "REASONING",
    "function_call": "CALL",
    "function_call_output": "RESULT",
}


def _tag(item: Any) -> str | None:
    kind = _kind(item)
    return _TAGS["message"] if kind is None else _TAGS.get(str(kind))


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("MESSAGE")]
    | Annotated[InputReasoning, Tag("REASONING")]
    | Annotated[InputCall, Tag("CALL")]
    | Annotated[CallResult, Tag("RESULT")],
    Discriminator(
        _tag,
        custom_error_type="item_type",
        custom_error_message=f"its type can only be {', '.join(_TAGS)}",
    ),
]


class FunctionTool(Function):
    """A function that the model may call."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, data: Any) -> Any:
        kind = data.get("type", "function") if isinstance(data, dict) else "function"
        if kind != "function":
            raise PydanticCustomError(
                "tool_type", "{kind} is no tool of this server, which knows only functions", {"kind": kind}
            )
        return data


class NamedFunctionTool(NamedFunction):
    """The function that the model must call."""

    type: Literal["function"]


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedFunctionTool
Tools: TypeAlias = Annotated[list[FunctionTool], FIRST_ERROR, Field(max_length=1024)]
