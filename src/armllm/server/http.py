"""Read bodies, send answers and server-sent events, and notice that a client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import from_json, to_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from armllm.server.errors import ApiError, as_api_error
from armllm.server.limits import HEAVY_BYTES
from armllm.server.protocol.base import MAX_FIELDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from armllm.server.limits import Limits
    from armllm.server.protocol.base import Body
    from armllm.server.service import Service

logger = logging.getLogger("armllm.server")

T = TypeVar("T")
AnyBody = TypeVar("AnyBody", bound="Body")

DONE = b"data: [DONE]\n\n"
LONG_ITEM = 2000  # bytes of JSON, which take some 10 us to write
BYTES_PER_TURN = 64 << 10  # of one stream before the others of the event loop have their turn


async def read_all(request: Request, take: Callable[[int], None]) -> bytes:
    """The request's body; ApiError if the client goes, or if ``take`` does not take so many more bytes."""
    pieces = []
    try:
        async for piece in request.stream():
            take(len(piece))
            pieces.append(piece)
    except ClientDisconnect:
        raise ApiError("the client went away", status=499) from None
    return b"".join(pieces)


async def read_body(request: Request, model: type[AnyBody]) -> AnyBody:
    """The request's JSON body, checked; ApiError or pydantic's ValidationError says what is wrong."""
    limits: Limits = request.app.state.service.limits
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":  # the types that web pages may send to other sites without asking
        raise ApiError(
            "send the body with the header 'Content-Type: application/json'"
            + (f", not {media_type!r:.80}" if media_type else ""),
            status=415,
            code="unsupported_media_type",
        )
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):  # of a few bytes others make gigabytes
        raise ApiError(
            f"the header Content-Encoding: {encoding!a:.40} is not supported: send the body as it is,"
            " without this header",
            status=415,
            code="unsupported_content_encoding",
            headers={"Accept-Encoding": "identity"},
        )
    length = request.headers.get("content-length", "0").strip()
    if not length.isdecimal() or len(length) > 18 or int(length) > limits.body_bytes:
        raise limits.too_large()
    with limits.reservation() as take:
        document = await read_all(request, take)
        if len(document) < HEAVY_BYTES:
            body = _parse(limits, document, model)
        else:
            body = await limits.offload.run(lambda: _parse(limits, document, model))
    request.state.fields = body.names_for_errors()
    return body


def _parse(limits: Limits, document: bytes, model: type[AnyBody]) -> AnyBody:
    limits.check_values(document)
    try:
        values = from_json(document)
    except ValueError as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(values, dict):
        raise ApiError("the body must be a JSON object", code="invalid_value")
    if len(values) > MAX_FIELDS:  # no time for the first unknown one of a million
        raise ApiError(f"the body has {len(values)} fields; no request has more than {MAX_FIELDS}")
    return model.model_validate(values)


async def answer(
    request: Request,
    model: type[AnyBody],
    work: Callable[[Service, AnyBody], Awaitable[Mapping[str, Any] | Response]],
) -> Response:
    """What ``work`` makes of the request's body, as JSON if it is none yet; cancelled with the client."""
    service: Service = request.app.state.service
    body = await read_body(request, model)
    service = service.of(body.model)
    found = await unless_disconnected(request, work(service, body))
    return found if isinstance(found, Response) else await long_json_response(found)


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
    return Response(to_json(document), media_type="application/json")


async def long_json_response(document: Mapping[str, Any]) -> Response:
    """As `json_response`; between the items of its lists the others of this event loop have their turn."""
    pieces = [b"{"]
    for name, value in document.items():
        pieces += [b"" if len(pieces) == 1 else b",", to_json(name), b":"]
        if isinstance(value, list) and value:
            for index, item in enumerate(value):
                pieces += [b"," if index else b"[", written := to_json(item)]
                if len(written) > LONG_ITEM:
                    await asyncio.sleep(0)
            pieces.append(b"]")
        else:
            pieces.append(to_json(value))
    return Response(b"".join([*pieces, b"}"]), media_type="application/json")


def data(document: Mapping[str, Any]) -> bytes:
    """One server-sent event as /v1/completions and /v1/chat/completions send it."""
    return b"data: " + to_json(document) + b"\n\n"


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
        written = 0
        try:
            async for event in self._events:
                yield event
                written += len(event)
                if written > BYTES_PER_TURN:
                    written = 0
                    await asyncio.sleep(0)  # to send waits for nobody as long as there is room
        except Exception as error:  # the status is out; the client must still hear of it
            failure = as_api_error(error)
            if failure.code == "internal_error":
                logger.exception("internal error")
            yield on_error(failure)
