"""POST /v1/responses: text in, text and calls of functions out, streamed or not."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from armllm.server.conversation import Conversation, prepare
from armllm.server.http import event_stream, json_response, named_event, read_body, unless_disconnected
from armllm.server.protocol.responses import ResponseObject, ResponsesRequest, ResponsesUsage
from armllm.server.response_items import Items
from armllm.server.response_request import as_chat
from armllm.server.service import Service, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.outputs import CompletionOutput, RequestOutput
    from armllm.server.errors import ApiError
    from armllm.server.events import Event


async def create_response(request: Request) -> Response:
    """Answer a text or a conversation."""
    service: Service = request.app.state.service
    body = await read_body(request, ResponsesRequest)
    conversation = await unless_disconnected(request, prepare(service, as_chat(body)))
    run = Run(conversation, body)
    if body.stream:
        return await event_stream(request, run.events(), run.failure)
    return json_response(await unless_disconnected(request, run.response()))


class Run:
    """One response and the events that tell how it comes about."""

    def __init__(self, conversation: Conversation, body: ResponsesRequest) -> None:
        self.conversation = conversation
        self.body = body
        self.id = new_id("resp_", body.request_id)
        self.created = int(time.time())
        self._parser = conversation.parser()
        self._items = Items(
            one_call=body.parallel_tool_calls is False, with_reasoning=body.include_reasoning is not False
        )
        self._sequence = 0
        self._tokens = 0
        self._prompt_tokens = len(conversation.prompt.token_ids)
        self._cached = 0
        self._reason: str | None = None

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Start the engine on the prompt."""
        return self.conversation.outputs(self.id, self.body.priority)

    async def response(self) -> ResponseObject:
        """Everything at once."""
        async for _, output in self.outputs():
            for event in self._read(output):
                self._items.add(event)
        self._items.close(cut=self._reason == "length")
        return self._object(self._status())

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events in OpenAI's order."""
        yield self._event("response.created", response=self._object("in_progress"))
        yield self._event("response.in_progress", response=self._object("in_progress"))
        async for _, output in self.outputs():
            for event in self._read(output):
                for kind, fields in self._items.add(event):
                    yield self._event(kind, **fields)
        for kind, fields in self._items.close(cut=self._reason == "length"):
            yield self._event(kind, **fields)
        status = self._status()
        yield self._event(f"response.{status}", response=self._object(status))

    def failure(self, error: ApiError) -> bytes:
        """The last event of a response that failed."""
        failed = self._object("failed")
        failed["error"] = {"code": error.code or "server_error", "message": error.message}
        return self._event("response.failed", response=failed)

    def _read(self, output: RequestOutput) -> list[Event]:
        self._cached = output.num_cached_tokens
        self._prompt_tokens = len(output.prompt_token_ids)  # with those of pictures
        events: list[Event] = []
        completion: CompletionOutput
        for completion in output.outputs:
            self._tokens += len(completion.token_ids)
            events += self._parser.feed(completion.text)
            if completion.finish_reason is not None:
                self._reason = completion.finish_reason
                events += self._parser.finish()
        return events

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        return named_event({"type": kind, "sequence_number": self._sequence - 1, **fields})

    def _status(self) -> Any:
        return "incomplete" if self._reason == "length" else "completed"

    def _object(self, status: Any) -> ResponseObject:
        done = status != "in_progress"
        prompt = self._prompt_tokens
        usage: ResponsesUsage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self._cached},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._tokens,
        }
        metadata, choice = self.body.metadata, self.body.tool_choice
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
            "output": self._items.all if done else [],
            "parallel_tool_calls": self.body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "temperature": self.conversation.params.temperature,
            "top_p": self.conversation.params.top_p,
            "text": {"format": shown},
            "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
            "tools": [tool.model_dump(exclude_unset=True) for tool in self.body.tools or ()],
            "truncation": "disabled",
            "metadata": metadata if isinstance(metadata, dict) else {},
            "store": False,
            "usage": usage if done else None,
        }
