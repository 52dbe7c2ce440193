"""HTTP/1.1 to one replica: connections that stay open, and answers piece by piece as they come."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import ssl
import time
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import httptools

from armllm.errors import RequestError
from armllm.server.connection import has_unknown_coding

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

T = TypeVar("T")

HEAD_BYTES = 64 << 10  # of an answer's status and headers, and of trailers, without a piece of the body
READ_BYTES = 64 << 10
CONNECT_SECONDS = 5.0
IDLE_SECONDS = 4.0  # uvicorn closes a connection after 5
MOST_IDLE = 256
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
REDIRECTS = (301, 302, 303, 307, 308)


class UpstreamError(Exception):
    """A replica can't be reached, or broke its answer off."""


class MalformedError(UpstreamError):
    """What a replica answered is no answer, whatever the request was."""


class UnreachableError(UpstreamError):
    """There is nobody to connect to."""


class ExhaustedError(UpstreamError):
    """No more connections can be opened, whoever listens."""


async def within(seconds: float, work: Awaitable[T]) -> T:
    """As `asyncio.wait_for`, but who is cancelled gets no error or result of ``work`` in place of that.

    From Python 3.12 on, `asyncio.wait_for` raises what ``work`` fails with while it is cancelled. Before, it
    returns what ``work`` has just returned. Then a health check would go on.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # so nothing is logged
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
        await asyncio.wait({task})
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a replica listens; ``url`` is what the user wrote."""

    url: str
    host: str = ""
    port: int = 0
    uds: str | None = None
    tls: ssl.SSLContext | None = None
    prefix: bytes = b""

    @classmethod
    def of(cls, url: str) -> Address:
        """Read http://HOST[:PORT][/PREFIX], https://… or unix:PATH; RequestError says what is wrong."""
        if url.startswith("unix:") and len(url) > len("unix:"):
            return cls(url, uds=url.removeprefix("unix:"))
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise RequestError(f"URL {url!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError(f"URL {url!r} must be http://HOST:PORT, https://HOST:PORT or unix:PATH")
        if parts.query or parts.fragment or parts.username or not url.isascii() or not url.isprintable():
            raise RequestError(f"URL {url!r} may have a host, a port and a path, and nothing else")
        secure = parts.scheme == "https"
        return cls(
            url,
            parts.hostname,
            port or (443 if secure else 80),
            tls=ssl.create_default_context() if secure else None,
            prefix=parts.path.rstrip("/").encode(),
        )

    @property
    def host_header(self) -> bytes:
        """What the replica is called in requests."""
        if self.uds is not None:
            return b"localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = 443 if self.tls else 80
        return (host if self.port == standard else f"{host}:{self.port}").encode()

    async def connect(self) -> Connection:
        """Open a connection; UnreachableError says why there is none."""
        try:
            reader, writer = await within(CONNECT_SECONDS, opening := asyncio.ensure_future(self._open()))
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                opening.result()[1].transport.abort()  # it was just opened
            raise
        except (TimeoutError, asyncio.TimeoutError):  # two classes in Python 3.10
            raise UpstreamError(f"no connection within {CONNECT_SECONDS:g} s") from None
        except (OSError, ValueError) as error:  # ValueError: a name that IDNA refuses
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise ExhaustedError(f"the router can connect to nobody: {error.strerror}") from None
            raise UnreachableError(getattr(error, "strerror", None) or str(error)) from None
        return Connection(reader, writer)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.uds is not None:
            return await asyncio.open_unix_connection(self.uds)
        return await asyncio.open_connection(self.host, self.port, ssl=self.tls)


@dataclasses.dataclass(eq=False)
class Connection:
    """An open connection, and since when it has had nothing to do."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float = 0.0

    def abort(self) -> None:
        """Close it at once."""
        self.writer.transport.abort()

    @property
    def usable(self) -> bool:
        """Whether it may be used again; what came without a question would answer the next one."""
        closed = self.writer.transport.is_closing() or self.reader.at_eof()
        excess = self.reader._buffer  # type: ignore[attr-defined] # noqa: SLF001 - reading could wait
        return not closed and not excess and time.monotonic() - self.idle_since < IDLE_SECONDS


class Answer:
    """The answer to one request. It has begun with the first byte of its body, or with its end."""

    def __init__(self, pool: Pool, connection: Connection, method: str) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []  # names in lower case
        self.heard_at = time.monotonic()
        self.begun = False
        self.heard = False  # a single byte, of any part
        self.aborted = False
        self.late = False
        self._pool = pool
        self._connection = connection
        self._no_body = method == "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._awaited_since: float | None = None  # while a piece is
        self._first_heard_at = 0.0
        self._head_bytes = 0  # since the last piece of the body
        self._has_head = self._complete = self._excess = False

    async def begin(self) -> None:
        """Wait until it has begun."""
        while not self._complete and not self._pieces:
            await self._read()
        self.begun = True

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes of the body as they come; UpstreamError if the replica breaks off."""
        while True:
            if self._pieces:  # chunks that came together go on together: each step costs more than its bytes
                pieces, self._pieces = self._pieces, []
                yield b"".join(pieces)
            if self._complete:
                return
            await self._read()

    async def _read(self) -> None:
        self._awaited_since = time.monotonic()
        try:
            data = await self._connection.reader.read(READ_BYTES)
        except (OSError, ssl.SSLError) as error:
            raise UpstreamError(f"the connection broke: {error}") from None
        finally:
            self._awaited_since = None
        self.heard_at = time.monotonic()
        self._first_heard_at = self._first_heard_at or self.heard_at
        if self.late:
            raise MalformedError("its answer began and did not go on")
        if not data:
            if self._has_head and self._until_end() and not self.aborted:
                self._complete = True
                return
            raise UpstreamError("the connection was closed before the answer's end")
        self.heard = True
        known = len(self._pieces)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise MalformedError(f"its answer is not HTTP: {error}") from None
        if has_unknown_coding(self.headers):
            raise MalformedError("its answer has a Transfer-Encoding that is not known")
        if self._has_head and not 200 <= self.status < 600:
            raise MalformedError(f"its answer has the status {self.status}, which is none")
        if self.status in REDIRECTS:  # which would take the client's request and key anywhere
            raise UpstreamError(f"its answer leads to another address (status {self.status})")
        self._head_bytes = 0 if len(self._pieces) > known else self._head_bytes + len(data)
        if self._head_bytes > HEAD_BYTES:
            raise MalformedError(f"the headers or trailers of its answer have more than {HEAD_BYTES} bytes")

    def _until_end(self) -> bool:
        """Whether the end of the connection is the body's."""
        return not any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)

    def close(self) -> None:
        """Keep the connection for another request if that is possible; else the replica hears of it."""
        reusable = self._complete and not self._excess and not self._no_body and not self.aborted
        self._pool.release(self, self._connection, reusable and self._parser.should_keep_alive())

    def stuck(self, seconds: float) -> bool:
        """Whether it has begun, and nothing came for so long; its head must be whole by then.

        A stream of events may wait for its turn, and an answer that has not begun is computed: as long as
        the replica is well, both take their time. A client that does not read is no fault of the replica.
        """
        now = time.monotonic()
        if not self._has_head:
            return self.heard and now - self._first_heard_at > seconds
        events = any(value.lower().startswith(b"text/event-stream") for _, value in self.headers)
        return not events and self._awaited_since is not None and now - self._awaited_since > seconds

    def abort(self) -> None:
        """End the connection; whoever reads from it gets an error."""
        self.aborted = True
        self._connection.abort()

    # what httptools calls

    def on_message_begin(self) -> None:
        """A second answer without a request makes the connection unusable."""
        self._excess = self._excess or self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there, unless it only says that another follows."""
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self.headers.clear()
        elif not self._has_head:
            self.status, self._has_head = status, True
            self._complete = self._no_body

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if not self._complete:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The end of an answer."""
        self._complete = self._has_head


class Pool:
    """The connections to one replica. Of those that wait, the latest is taken first."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.answers: set[Answer] = set()  # those that are awaited or read
        self._idle: list[Connection] = []

    async def ask(self, method: str, head: bytes, body: bytes) -> Answer:
        """Send a request and wait until its answer begins; UpstreamError if none does.

        A replica may close a connection that waited just when it is used. Then another one is tried.
        """
        while True:
            self.prune()
            connection = self._idle.pop() if self._idle else None
            reused = connection is not None
            connection = connection or await self.address.connect()
            answer = Answer(self, connection, method)
            self.answers.add(answer)
            try:
                connection.writer.write(head + body if len(body) < READ_BYTES else head)
                if len(body) >= READ_BYTES:
                    connection.writer.write(body)
                await answer.begin()
            except UpstreamError:
                answer.close()
                if reused and not answer.heard and not answer.aborted:
                    continue
                raise
            except BaseException:
                answer.close()
                raise
            return answer

    def release(self, answer: Answer, connection: Connection, reusable: bool) -> None:
        """Take a connection back whose answer is no longer read."""
        if answer not in self.answers:
            return
        self.answers.discard(answer)
        if reusable and len(self._idle) < MOST_IDLE:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.abort()

    def prune(self) -> None:
        """Close what has waited too long, or was closed by the replica."""
        usable = []
        for connection in self._idle:
            if connection.usable:
                usable.append(connection)
            else:
                connection.abort()
        self._idle = usable

    def close(self) -> None:
        """Close every connection that waits."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
