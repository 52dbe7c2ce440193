"""Bodies in, answers and server-sent events out, and noticing that a client went away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from armllm.server.errors import ApiError, as_api_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from armllm.server.protocol.base import Body

logger = logging.getLogger("armllm.server")

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound="Body")

MAX_BODY_BYTES = 64 << 20
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
DONE = b"data: [DONE]\n\n"


async def read_body(request: Request, model: type[AnyBody]) -> AnyBody:
    """The request's JSON body, checked; ApiError or pydantic's ValidationError says what is wrong."""
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise ApiError(f"the body has more than {MAX_BODY_BYTES >> 20} MiB", status=413)
            pieces.append(piece)
    except ClientDisconnect:
        raise ApiError("the client went away", status=499) from None
    body = model.model_validate_json(b"".join(pieces))
    request.state.fields = body.names_for_errors()
    return body


async def unless_disconnected(request: Request, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled as soon as the client has gone."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError("the client went away", status=499)
    finally:
        for pending in (task, watcher):
            if not pending.done():
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pending


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_response(document: Mapping[str, Any]) -> Response:
    """A JSON document as an answer."""
    return Response(_dumps(document), media_type="application/json")


def data(document: Mapping[str, Any]) -> bytes:
    """One server-sent event as /v1/completions and /v1/chat/completions send it."""
    return b"data: " + _dumps(document) + b"\n\n"


def named_event(document: Mapping[str, Any]) -> bytes:
    """One server-sent event as /v1/responses sends it, named after its type."""
    name: str = document["type"]
    return b"event: " + name.encode() + b"\n" + data(document)


async def event_stream(
    request: Request, events: AsyncGenerator[bytes, None], on_error: Callable[[ApiError], bytes]
) -> Response:
    """Server-sent events; what fails before the first one is answered with an error status."""
    try:
        first = await unless_disconnected(request, anext(events))
    except BaseException:
        await events.aclose()
        raise
    return EventStream(first, events, on_error)


class EventStream(StreamingResponse):
    """Sends events; however it ends, their generator is closed, which drops the request in the engine."""

    def __init__(
        self, first: bytes, events: AsyncGenerator[bytes, None], on_error: Callable[[ApiError], bytes]
    ) -> None:
        super().__init__(
            self._sent(first, on_error),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()

    async def _sent(self, first: bytes, on_error: Callable[[ApiError], bytes]) -> AsyncGenerator[bytes, None]:
        yield first
        try:
            async for event in self._events:
                yield event
        except Exception as error:  # the status is out; the client must still hear of it
            failure = as_api_error(error)
            if failure.code == "internal_error":
                logger.exception("internal error")
            yield on_error(failure)


def _dumps(document: Mapping[str, Any]) -> bytes:
    return _encode(document).encode()
