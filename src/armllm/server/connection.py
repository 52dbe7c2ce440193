"""Limits of a connection before its key is checked: uvicorn's protocol, with limits."""

from __future__ import annotations

import dataclasses
from asyncio.sslproto import SSLProtocol
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable, Iterable

    from armllm.server.limits import Limits

HEADER_BYTES = 64 << 10
PIECE_BYTES = 16 << 10  # parsed at once: headers behind another request count from the next piece on
HEADER_SECONDS = 10.0  # from the connection on, what TLS takes included
BODY_SECONDS = 60.0  # from the headers on
WRITE_SECONDS = 60.0  # of a client that reads nothing of its answer
LINGER_SECONDS = 10.0  # of a client that still sends after its answer
LINGER_BYTES = 1 << 20  # of one whose request could not be parsed
MAX_PIPELINED = 8  # requests that wait behind the one that is answered
# A chunk of one byte takes six bytes.
CHUNKED_BYTES = 8
LONG_HEADERS = f"The headers have more than {HEADER_BYTES} bytes, the limit of this server.\n"
BAD_REQUEST = "Invalid HTTP request received."
BAD_BODY = "The body's chunks are not as HTTP/1.1 has them, or too large: send it with a Content-Length.\n"
BAD_HOST = "A request of HTTP/1.1 names its host, in one Host header (RFC 9112, 3.2).\n"
BAD_CODING = "The body's Transfer-Encoding is not known: send it chunked, or with a Content-Length.\n"


def has_unknown_coding(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a message, whose headers have names in lower case, says that its body is more than chunked."""
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    return codings not in ([], [b"chunked"])


class _Flow(FlowControl):
    """When a connection is read. Nobody resumes what has ``ended``: answers before a refusal would."""

    ended = False

    def resume_reading(self) -> None:
        if not self.ended:
            super().resume_reading()


@dataclasses.dataclass
class _AnswerTransport:
    """What an answer needs of its connection's transport, with another ``close``."""

    write: Callable[[bytes], None]
    is_closing: Callable[[], bool]
    close: Callable[[], None]


class LimitedProtocol(HttpToolsProtocol):
    """One connection.

    A connection beyond the limit takes the place of the one that has waited longest for a whole request. One
    that is refused gets its answer when its peer has waited as `Refusals` says, and nothing more.

    A connection with an answer, whose peer still sends, is closed in two steps (RFC 9112, 9.6): it sends no
    more, and drops what comes until the peer closes. To close at once would reset it, and the peer could lose
    the answer.
    """

    flow: _Flow

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._most_bytes = HEADER_BYTES + CHUNKED_BYTES * limits.body_bytes
        self._limits = limits
        self._idle = limits.idle
        self._open = limits.open
        self._refusals = limits.refusals
        self._refusing: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._in_body = False
        self._lingers = False
        self._offers_protocol = False
        self._fault: tuple[str, str] | None = None
        self._header_bytes = 0
        self._message_bytes = 0

    def accept(self, transport: asyncio.BaseTransport) -> None:
        """Make room for a connection, and wait for a request."""
        self._limits.admit(self, transport)
        if self in self._open:  # else requests run on all others
            self._set_deadline(HEADER_SECONDS)

    def leave(self) -> Any:
        """Give the place of a connection to others; return what it was made of."""
        self._idle.pop(self, None)
        self._set_deadline(None)
        return self._open.pop(self, None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the first bytes of a request from now on."""
        super().connection_made(transport)
        self.flow = _Flow(transport)
        if self not in self._open:  # else TLS has
            self.accept(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it, but not how often its address leaves before it is answered.

        On a Unix socket it is a proxy that leaves, as each of its clients does.
        """
        answered = self.cycle is not None and self.cycle.response_complete and not self._in_body
        if self.client and not answered and not self._lingers and self._refusing is None:
            self._refusals.delay(self.client[0])
        self.leave()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what was read, in pieces."""
        for start in range(0, len(data), PIECE_BYTES):
            self._take(data[start : start + PIECE_BYTES])

    def _take(self, data: bytes) -> None:
        """Count before anything is stored."""
        self._message_bytes += len(data)
        if self._lingers and self._message_bytes > (self._most_bytes if self._in_body else LINGER_BYTES):
            self.transport.abort()
        if self._lingers or self._refusing is not None:
            return
        if self._in_body and self._message_bytes > self._most_bytes:
            self.send_400_response("The request is too large.")
            return
        if not self._in_body and self._deadline is None:
            self._set_deadline(HEADER_SECONDS)
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning(BAD_REQUEST)
            self.send_400_response(BAD_REQUEST)
        if self._refusing is None and not self._in_body and self._message_bytes > HEADER_BYTES:
            self._header_bytes = self._message_bytes  # of headers that have not ended
            self.send_400_response("The request is too large.")

    def on_message_begin(self) -> None:
        """Start to count again."""
        self._header_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, or what comes after a chunked body as one."""
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Wait for the body; a URL that can't be read is an error, and no body comes."""
        names = [name for name, _ in self.headers]
        self._offers_protocol = self.parser.should_upgrade() and b"upgrade" in names
        if self._offers_protocol:
            return
        self._set_deadline(BODY_SECONDS)
        if has_unknown_coding(self.headers):
            self._fault = "501 Not Implemented", BAD_CODING
        elif names.count(b"host") != 1 and self.parser.get_http_version() == "1.1":
            self._fault = "400 Bad Request", BAD_HOST
        if self._fault:
            raise ValueError(self._fault)
        super().on_headers_complete()
        self.cycle.transport = _AnswerTransport(  # type: ignore[assignment]
            self.transport.write, self.transport.is_closing, self._close
        )
        self._in_body = True
        if len(self.pipeline) > MAX_PIPELINED:
            raise ValueError("too many pipelined requests")

    def on_message_complete(self) -> None:
        """Wait for nothing but the answer."""
        if self._offers_protocol:
            return
        self._in_body = False
        if not self.cycle.response_complete:
            self._idle.pop(self, None)
        self._message_bytes = 0
        self._set_deadline(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Let the connection go where another one needs its place."""
        if self._lingers:
            return
        super().on_response_complete()
        if self in self._open and not self.pipeline and not self.transport.is_closing():
            self._idle[self] = None

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be parsed; within another answer, or after its own, there is no place for it."""
        if self._refusing is None:
            self.flow.pause_reading()
            self.flow.ended = True
            self._refusing = self.loop.create_task(self._refuse(msg))

    async def _refuse(self, msg: str) -> None:
        await self._refusals.wait(self.client[0] if self.client else "")
        if self.transport.is_closing():
            return
        if self._in_body:
            within_another = self.pipeline or self.cycle.response_started
        else:
            within_another = self.cycle is not None and not self.cycle.response_complete
        if within_another:
            self.transport.abort()
        elif self._header_bytes > HEADER_BYTES:
            self._end_with("431 Request Header Fields Too Large", LONG_HEADERS)
        elif self._fault:
            self._end_with(*self._fault)
        else:
            self._end_with("400 Bad Request", BAD_BODY if self._in_body else msg)

    def _end_with(self, status: str, sentence: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
        self.transport.write(f"{head}Content-Length: {len(sentence)}\r\n\r\n{sentence}".encode())
        self._linger()

    def _close(self) -> None:
        """Close after an answer."""
        if self._in_body and not self.transport.is_closing():
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        self._lingers = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.transport.resume_reading()
        self._set_deadline(LINGER_SECONDS)
        self._idle[self] = None

    def _parse(self, data: bytes) -> bytes:
        """Parse, and return what is to be parsed again: a request, without its offer of another protocol.

        A server may ignore the offer (RFC 9110, 7.8). The parser would leave the body out.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            method, version = self.parser.get_method(), self.parser.get_http_version().encode()
            fields = [b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade"]
            head = b"%s %s HTTP/%s\r\n%s\r\n" % (method, self.url, version, b"".join(fields))
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            return head + data[offer.args[0] :]
        return b""

    def pause_writing(self) -> None:
        """Wait for the client to read, but not for ever."""
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None
        super().resume_writing()

    def _count(self, size: int) -> None:
        self._header_bytes += size + 4
        if self._header_bytes > HEADER_BYTES:
            raise ValueError("the headers are too large")

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._open[self].abort)


class LimitedTLS(SSLProtocol):
    """TLS around a `LimitedProtocol`, whose place and deadline it has from the first packet on.

    Within an event loop, a protocol that speaks TLS is known to nobody until both sides have agreed.
    """

    max_size = 16 * 1024  # bytes of the buffer that each connection has; SSLProtocol's own has 256 KiB

    def __init__(self, inner: LimitedProtocol, context: ssl.SSLContext) -> None:
        super().__init__(inner.loop, inner, context, None, server_side=True)  # type: ignore[arg-type]
        self._limited = inner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to agree."""
        self._limited.accept(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End, before both sides have agreed or later."""
        super().connection_lost(exc)
        self._limited.leave()


def protocol(
    limits: Limits, context: ssl.SSLContext | None = None
) -> Callable[..., LimitedProtocol | LimitedTLS]:
    """What makes a connection's protocol of the options that uvicorn gives; ``context``: over TLS."""

    def make(**options: Any) -> LimitedProtocol | LimitedTLS:
        inner = LimitedProtocol(limits, **options)
        return inner if context is None else LimitedTLS(inner, context)

    return make
