"""Forward requests and answers unchanged between a client and a replica."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from armllm.server.errors import ApiError
from armllm.server.http import DONE, data, named_event, read_all, unless_disconnected
from armllm.server.limits import HEAVY_BYTES
from armllm.server.router.prefixes import Prompt, read_prompt
from armllm.server.router.replica import Load
from armllm.server.router.upstream import ExhaustedError, UpstreamError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from starlette.types import Receive, Scope, Send

    from armllm.server.limits import Limits
    from armllm.server.router.metrics import RouterMetrics
    from armllm.server.router.replica import Replica, Replicas
    from armllm.server.router.upstream import Answer

logger = logging.getLogger("armllm.server.router")

Headers = list[tuple[bytes, bytes]]
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# What is written again, or was decided here.
OWN = frozenset((b"host", b"content-length", b"expect", b"origin", b"x-forwarded-for", b"x-forwarded-proto"))
UNWELL = (502, 503, 504)
EVENT_BYTES = 8 << 20  # of an event that is not whole; longer ones are passed on in pieces
_EVENT_END = re.compile(rb"\r?\n\r?\n")


class Forwarder:
    """Asks the replica that has the least to do, and another one as long as no answer has begun."""

    def __init__(self, replicas: Replicas, limits: Limits, metrics: RouterMetrics) -> None:
        self.num_waiting = 0  # for a replica
        self._replicas = replicas
        self._limits = limits
        self._metrics = metrics

    async def forward(self, request: Request) -> Response:
        """The answer of a replica; ApiError if there is none."""
        with self._limits.reservation() as take:
            body = await read_all(request, take)
            prompt = await self._limits.offload.if_slow(
                len(body) >= HEAVY_BYTES,
                lambda: read_prompt(request.url.path, body) if body else Prompt(),
            )
            return await unless_disconnected(request, self._ask(request, body, prompt))

    async def _ask(self, request: Request, body: bytes, prompt: Prompt) -> Relay:
        headers = request_headers(request)
        request_id = dict(headers)[b"x-request-id"]
        tried: list[Replica] = []
        reason = "no replica is well"
        while (replica := self._replicas.choose(prompt, tried)) is not None:
            if tried:
                self._metrics.retries.inc()
            tried.append(replica)
            load = Load(replica, prompt)
            try:
                answer = await self._begin(replica, request, headers, body)
                if not await self._refuses(replica, answer) or not self._replicas.others(tried):
                    load.begun()
                    return Relay(self, answer, load, request.url.path, request_id)
                answer.close()
                reason = f"status {answer.status}"
            except ExhaustedError as error:
                load.end()
                raise ApiError(f"{error}; try again later", status=503, code="busy") from None
            except UpstreamError as error:
                replica.doubt(error)
                reason = str(error)
            except BaseException:
                load.end()
                raise
            load.end()
            logger.warning("replica %s did not answer a request: %s", replica.name, reason)
        raise ApiError(
            f"no replica answered: {reason}; try again later",
            status=502 if tried else 503,
            code="no_replica",
            headers={"Retry-After": "1"},
        )

    async def _begin(self, replica: Replica, request: Request, headers: Headers, body: bytes) -> Answer:
        target = request.scope["raw_path"]
        prefix = request.scope["root_path"].encode()  # the router's; the replicas need not know it
        if target.startswith(prefix + b"/"):
            target = target[len(prefix) :]
        if request.scope["query_string"]:
            target += b"?" + request.scope["query_string"]
        head = replica.head(request.method, target, headers, len(body))
        with self.waiting():
            return await replica.pool.ask(request.method, head, body)

    @staticmethod
    async def _refuses(replica: Replica, answer: Answer) -> bool:
        """Whether a replica says that it can't answer, now or ever."""
        try:
            return answer.status in UNWELL or (answer.status == 500 and not await replica.check())
        except BaseException:
            answer.close()
            raise

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in which it is a replica that has something to do."""
        self.num_waiting += 1
        try:
            yield
        finally:
            self.num_waiting -= 1

    def broke_off(self, load: Load, error: UpstreamError) -> None:
        """An answer ended too early."""
        self._metrics.cut.inc()
        load.replica.doubt(error)
        logger.warning("replica %s broke an answer off: %s", load.replica.name, error)


class Relay(Response):
    """Sends what a replica answers. When it ends, however it does, the replica is free."""

    def __init__(
        self, forwarder: Forwarder, answer: Answer, load: Load, path: str, request_id: bytes
    ) -> None:
        self._forwarder = forwarder
        self._answer = answer
        self._load = load
        self._path = path
        self.status_code = answer.status
        self.background = None
        dropped = HOP_BY_HOP | {b"date"} | _named_by_connection(answer.headers)  # uvicorn writes the date
        self.raw_headers = [field for field in answer.headers if field[0] not in dropped]
        fields = dict(self.raw_headers)
        if b"x-request-id" not in fields:
            self.raw_headers.append((b"x-request-id", request_id))
        self._events = (
            fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
            and b"content-encoding" not in fields
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; the client may go."""
        try:
            with contextlib.suppress(ApiError):  # it has gone
                await unless_disconnected(Request(scope, receive), self._send(send))
        finally:
            self.close()

    def close(self) -> None:
        """Let the replica know that nobody reads any more."""
        self._answer.close()
        self._load.end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        pieces = self._waited_for()
        try:
            async with contextlib.aclosing(whole_events(pieces) if self._events else pieces) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            self._load.replica.trust()
        except UpstreamError as error:
            self._forwarder.broke_off(self._load, error)
            if not self._events:
                return  # uvicorn closes the connection, by which the client sees that something is missing
            await send({"type": "http.response.body", "body": cut_event(self._path), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _waited_for(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._answer.pieces()) as pieces:
            while True:
                try:
                    with self._forwarder.waiting():
                        piece = await anext(pieces)
                except StopAsyncIteration:
                    return
                yield piece


async def whole_events(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes, cut between server-sent events; of what is broken off the last event is dropped."""
    rest = bytearray()  # which grows by a small piece without a copy of the whole
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            searched = max(0, len(rest) - 3)
            rest += piece
            end = max((found.end() for found in _EVENT_END.finditer(rest, searched)), default=0)
            if len(rest) - end > EVENT_BYTES:
                end = len(rest)
            if end:
                yield bytes(rest[:end])
                del rest[:end]
    if rest:
        yield bytes(rest)


def cut_event(path: str) -> bytes:
    """What a stream ends with whose replica is gone."""
    error = ApiError(
        "the replica that wrote this answer is gone; send the request again", status=502, code="replica_lost"
    )
    if path.endswith("/responses"):
        fields = {"code": error.code, "message": error.message, "param": None, "sequence_number": 0}
        return named_event({"type": "error", **fields})
    return data(error.body()) + DONE


def request_headers(request: Request) -> Headers:
    """What a replica gets: no fields of one connection only, and who the client is.

    The replica believes the router, so what a client says of itself must not pass.
    """
    fields: Sequence[tuple[bytes, bytes]] = request.scope["headers"]
    dropped = HOP_BY_HOP | OWN | _named_by_connection(fields)
    headers = [field for field in fields if field[0] not in dropped]
    if request.client is not None:
        headers.append((b"x-forwarded-for", request.client.host.encode()))
    headers.append((b"x-forwarded-proto", request.scope["scheme"].encode()))
    if not any(name == b"x-request-id" for name, _ in headers):
        headers.append((b"x-request-id", uuid.uuid4().hex.encode()))
    return headers


def _named_by_connection(fields: Sequence[tuple[bytes, bytes]]) -> set[bytes]:
    """Fields that the header Connection calls its own (RFC 9110, 7.6.1)."""
    return {
        one.strip().lower() for name, value in fields if name == b"connection" for one in value.split(b",")
    }
