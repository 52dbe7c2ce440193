"""What goes into /v1/responses: messages, earlier thoughts and calls with their results, and tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from armllm.server.protocol.base import FIRST_ERROR, Strict
from armllm.server.protocol.chat import Function, NamedFunction


class TextPart(Strict):
    """A piece of text, said to or by the model."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


Texts: TypeAlias = str | Annotated[list[TextPart], FIRST_ERROR]


class InputMessage(Strict):
    """What someone said; an earlier answer can be given back as it came."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts
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


# in capitals, so that they are no part of the path of a field in an error
_TAGS = {
    "message": "MESSAGE",
    "reasoning": "REASONING",
    "function_call": "CALL",
    "function_call_output": "RESULT",
}


def _tag(item: Any) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
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
