"""A small client of the served image: health, a completion, a stream. Standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOKENS = 48
NONSENSE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a document raises that is not as it should be."""
LIMIT = 4 << 20
"""Bytes of an answer."""
HEALTH_SECONDS, ANSWER_SECONDS = 10.0, 300.0
_NO_ANSWER = (OSError, http.client.HTTPException, *NONSENSE)


def free_port() -> int:
    """Return a TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def dial(port: int) -> socket.socket:
    """Return a connection to a port of this machine."""
    return socket.create_connection(("127.0.0.1", port))


class _Connection(http.client.HTTPConnection):
    def __init__(self, port: int, connect: Callable[[int], socket.socket], timeout: float) -> None:
        super().__init__("127.0.0.1", port, timeout=timeout)
        self._connect = connect
        self._reached: socket.socket | None = None

    def connect(self) -> None:
        self.sock = self._reached = self._connect(self.port)
        self.sock.settimeout(self.timeout)

    def cut(self) -> None:
        """End what is still to come: a byte now and then would keep each single read from its timeout."""
        if self._reached is not None:
            with contextlib.suppress(OSError):
                self._reached.shutdown(socket.SHUT_RDWR)


class Client:
    """Speaks to the server on a port about one model; CheckFailed says what went wrong.

    The server is a stranger's: each answer has a limit of bytes, and of seconds to its end.
    """

    def __init__(self, port: int, model: str, connect: Callable[[int], socket.socket] = dial) -> None:
        self.port, self.model, self._connect = port, model, connect

    def healthy(self) -> bool:
        """Return whether GET /health says yes."""
        try:
            with self._asked(HEALTH_SECONDS, "GET", "/health") as response:
                return response.status == http.client.OK
        except _NO_ANSWER:
            return False

    def complete(self, prompt: str) -> str:
        """Return what the model says after ``prompt``."""
        try:
            with self._post(prompt, stream=False) as response:
                content = response.read(LIMIT + 1)
            if len(content) > LIMIT:
                raise ValueError(f"more than {LIMIT} bytes")
            text = json.loads(content)["choices"][0]["text"]
            if not isinstance(text, str):
                raise TypeError(f"{text!r:.100} is no text")
        except _NO_ANSWER as error:
            raise CheckFailed(f"POST /v1/completions: no answer that makes sense: {error!r:.300}") from error
        return text

    def stream(self, prompt: str) -> tuple[str, float]:
        """Return the same, streamed, and the seconds to its first piece."""
        start, first, text, done, size = time.monotonic(), 0.0, "", False, 0
        try:
            with self._post(prompt, stream=True) as response:
                while line := response.readline(LIMIT):
                    size += len(line)
                    if size > LIMIT:
                        raise ValueError(f"more than {LIMIT} bytes")
                    data = line.decode().strip()
                    if data == "data: [DONE]":
                        done = True
                    elif data.startswith("data: "):
                        choices = json.loads(data.removeprefix("data: "))["choices"]
                        piece = "".join(choice.get("text", "") for choice in choices)
                        first = first or (time.monotonic() - start if piece else 0.0)
                        text += piece
        except _NO_ANSWER as error:
            raise CheckFailed(f"streaming: no answer that makes sense: {error!r:.300}") from error
        if not done:
            raise CheckFailed("the stream ended without [DONE]")
        return text, first

    @contextlib.contextmanager
    def _asked(
        self, seconds: float, method: str, path: str, body: str | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _Connection(self.port, self._connect, seconds)
        clock = threading.Timer(seconds, connection.cut)
        clock.daemon = True
        clock.start()
        headers = {"Connection": "close", **({"Content-Type": "application/json"} if body else {})}
        try:
            connection.request(method, path, body, headers)
            with connection.getresponse() as response:
                yield response
        finally:
            clock.cancel()
            connection.close()

    @contextlib.contextmanager
    def _post(self, prompt: str, *, stream: bool) -> Iterator[http.client.HTTPResponse]:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": stream,
        }
        with self._asked(ANSWER_SECONDS, "POST", "/v1/completions", json.dumps(body)) as response:
            if response.status != http.client.OK:
                raise CheckFailed(f"POST /v1/completions: status {response.status}: {response.read(300)!r}")
            yield response
