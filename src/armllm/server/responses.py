"""POST /v1/responses: text in, text out, streamed or not."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from armllm.server.conversation import Conversation, prepare
from armllm.server.errors import ApiError
from armllm.server.events import Event, Reasoning, Text
from armllm.server.generation import generate
from armllm.server.http import event_stream, json_response, named_event, read_body, unless_disconnected
from armllm.server.protocol.chat import ChatRequest
from armllm.server.protocol.responses import (
    AS_IN_CHAT,
    OutputItem,
    OutputText,
    ResponseObject,
    ResponsesRequest,
    ResponsesUsage,
    SchemaFormat,
)
from armllm.server.service import Service, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.outputs import CompletionOutput, RequestOutput


async def create_response(request: Request) -> Response:
    """Answer a text or a conversation."""
    service: Service = request.app.state.service
    body = await read_body(request, ResponsesRequest)
    conversation = await unless_disconnected(request, prepare(service, _as_chat(body)))
    run = Run(conversation, body)
    if body.stream:
        return await event_stream(request, run.events(), run.failure)
    return json_response(await unless_disconnected(request, run.response()))


def _as_chat(body: ResponsesRequest) -> ChatRequest:
    """The same request to /v1/chat/completions."""
    messages: list[dict[str, Any]] = []
    if body.instructions is not None:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        for message in body.input:
            content = message.content
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            role = "system" if message.role == "developer" else message.role
            messages.append({"role": role, "content": text})
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
    return ChatRequest.model_validate(chat)


class Run:
    """One response and the events that tell how it comes about."""

    def __init__(self, conversation: Conversation, body: ResponsesRequest) -> None:
        self.conversation = conversation
        self.body = body
        self.id = new_id("resp_", body.request_id)
        self.created = int(time.time())
        self._parser = conversation.parser()
        self._items: list[OutputItem] = []
        self._sequence = 0
        self._tokens = 0
        self._cached = 0
        self._reason: str | None = None

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Start the engine on the prompt."""
        conversation = self.conversation
        return generate(
            conversation.service,
            self.id,
            [conversation.prompt],
            conversation.params,
            priority=self.body.priority,
        )

    async def response(self) -> ResponseObject:
        """Everything at once."""
        async for _, output in self.outputs():
            for event in self._read(output):
                self._add(event)
        for item in self._items:
            _finish(item)
        return self._object(self._status())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events in OpenAI's order."""
        yield self._event("response.created", response=self._object("in_progress"))
        yield self._event("response.in_progress", response=self._object("in_progress"))
        async for _, output in self.outputs():
            for event in self._read(output):
                for data in self._told(event):
                    yield data
        for data in self._closing():
            yield data
        status = self._status()
        yield self._event(f"response.{status}", response=self._object(status))

    def failure(self, error: ApiError) -> bytes:
        """The last event of a response that failed."""
        failed = self._object("failed")
        failed["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=failed)

    def _read(self, output: RequestOutput) -> list[Event]:
        self._cached = output.num_cached_tokens
        events: list[Event] = []
        completion: CompletionOutput
        for completion in output.outputs:
            self._tokens += len(completion.token_ids)
            events += self._parser.feed(completion.text)
            if completion.finish_reason is not None:
                self._reason = completion.finish_reason
                events += self._parser.finish()
        return events

    def _add(self, event: Event) -> tuple[OutputItem, bool]:
        """Put a piece of text where it belongs; the item, and whether it has just begun."""
        if not isinstance(event, (Text, Reasoning)):
            raise TypeError("there are no tools here")
        kind = "message" if isinstance(event, Text) else "reasoning"
        begins = not self._items or self._items[-1]["type"] != kind
        if begins:
            self._items.append(_new_item(kind))
        item = self._items[-1]
        item["content"][0]["text"] += event.text
        return item, begins

    def _told(self, event: Event) -> list[bytes]:
        last = self._items[-1] if self._items else None
        item, begins = self._add(event)
        events: list[bytes] = []
        if begins:
            if last is not None:
                events += self._ending(last, len(self._items) - 2)
            place = {"output_index": len(self._items) - 1}
            opened: OutputItem = {**item, "content": []}
            events.append(self._event("response.output_item.added", **place, item=opened))
            part: OutputText = {**item["content"][0], "text": ""}
            events.append(
                self._event(
                    "response.content_part.added", item_id=item["id"], **place, content_index=0, part=part
                )
            )
        name = item["content"][0]["type"]
        events.append(
            self._event(
                f"response.{name}.delta",
                item_id=item["id"],
                output_index=len(self._items) - 1,
                content_index=0,
                delta=event.text,  # type: ignore[union-attr]
            )
        )
        return events

    def _closing(self) -> list[bytes]:
        return self._ending(self._items[-1], len(self._items) - 1) if self._items else []

    def _ending(self, item: OutputItem, index: int) -> list[bytes]:
        _finish(item)
        part = item["content"][0]
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        return [
            self._event(f"response.{part['type']}.done", **place, text=part["text"]),
            self._event("response.content_part.done", **place, part=part),
            self._event("response.output_item.done", output_index=index, item=item),
        ]

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event({"type": kind, "sequence_number": self._sequence - 1, **fields})

    def _status(self) -> Any:
        return "incomplete" if self._reason == "length" else "completed"

    def _object(self, status: Any) -> ResponseObject:
        done = status != "in_progress"
        prompt = len(self.conversation.prompt.token_ids)
        usage: ResponsesUsage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._tokens,
        }
        metadata = self.body.metadata
        form = self.body.text.format if self.body.text else None
        shown = form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "model": self.conversation.service.model,
            "output": self._items if done else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "temperature": self.conversation.params.temperature,
            "top_p": self.conversation.params.top_p,
            "text": {"format": shown},
            "tool_choice": "none",
            "tools": [],
            "truncation": "disabled",
            "metadata": metadata if isinstance(metadata, dict) else {},
            "store": False,
            "usage": usage if done else None,
        }


def _new_item(kind: str) -> OutputItem:
    if kind == "message":
        return {
            "type": "message",
            "id": f"msg_{uuid.uuid4().hex}",
            "status": "in_progress",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "", "annotations": []}],
        }
    return {
        "type": "reasoning",
        "id": f"rs_{uuid.uuid4().hex}",
        "status": "in_progress",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": ""}],
    }


def _finish(item: OutputItem) -> None:
    item["status"] = "completed"
