"""A request to /v1/responses as the same request to /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.server.errors import ApiError
from armllm.server.protocol.chat import ChatRequest
from armllm.server.protocol.responses import AS_IN_CHAT, ResponsesRequest, SchemaFormat
from armllm.server.protocol.responses_input import (
    CallResult,
    InputCall,
    InputMessage,
    InputReasoning,
    NamedFunctionTool,
    TextPart,
)

if TYPE_CHECKING:
    from armllm.server.protocol.responses_input import InputItem, Texts


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """The conversation, its tools and its parameters; ApiError where there is no conversation."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for item in body.input:
            _append(messages, item)
    if not messages:
        raise ApiError("input must not be empty", param="input", code="invalid_value")
    chat: dict[str, Any] = {name: getattr(body, name) for name in AS_IN_CHAT}
    chat |= {"messages": messages, "max_completion_tokens": body.max_output_tokens}
    if body.reasoning is not None:
        chat["reasoning_effort"] = body.reasoning.effort
    if body.structured_outputs is not None:
        chat["structured_outputs"] = body.structured_outputs.model_dump(by_alias=True)
    form = body.text.format if body.text else None
    if isinstance(form, SchemaFormat):
        schema = {"name": form.name, "schema": form.schema_}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form is not None:
        chat["response_format"] = {"type": form.type}
    return ChatRequest.model_validate(chat | _tools(body))


def _tools(body: ResponsesRequest) -> dict[str, Any]:
    if not body.tools:
        # clients send their defaults without tools, too: those mean nothing then
        return {} if body.tool_choice in (None, "auto", "none") else {"tool_choice": _choice(body)}
    tools = [
        {"type": "function", "function": tool.model_dump(exclude_unset=True, exclude={"type"})}
        for tool in body.tools
    ]
    return {
        "tools": tools,
        "tool_choice": _choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
    }


def _choice(body: ResponsesRequest) -> Any:
    if isinstance(body.tool_choice, NamedFunctionTool):
        return {"type": "function", "function": {"name": body.tool_choice.name}}
    return body.tool_choice


def _append(messages: list[dict[str, Any]], item: InputItem) -> None:
    """Add an item; what the model thought, said and called in one turn is one message."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if isinstance(item, InputMessage):
        content = _content(item)
        only_thoughts = last is not None and last["content"] is None and "tool_calls" not in last
        if item.role == "assistant" and last is not None and only_thoughts:
            last["content"] = content
            return
        role = "system" if item.role == "developer" else item.role
        messages.append({"role": role, "content": content})
    elif isinstance(item, InputReasoning):
        thought = "".join(part.text for part in item.content or ())
        messages.append({"role": "assistant", "content": None, **dict.fromkeys(_THOUGHTS, thought)})
    elif isinstance(item, CallResult):
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
    else:
        if last is None:
            messages.append(last := {"role": "assistant", "content": None})
        last.setdefault("tool_calls", []).append(_call(item))


_THOUGHTS = ("reasoning", "reasoning_content")
"""The names that templates know thoughts by."""


def _call(item: InputCall) -> dict[str, Any]:
    function = {"name": item.name, "arguments": item.arguments}
    return {"id": item.call_id, "type": "function", "function": function}


def _content(item: InputMessage) -> str | list[dict[str, Any]]:
    """One text, or its parts where there are pictures among them."""
    texts = [part for part in item.content if isinstance(part, TextPart)]
    if isinstance(item.content, str) or len(texts) == len(item.content):
        return _text(item.content if isinstance(item.content, str) else texts)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "image_url", "image_url": {"url": part.image_url}}
        for part in item.content
        if not isinstance(part, str)
    ]


def _text(content: Texts) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
