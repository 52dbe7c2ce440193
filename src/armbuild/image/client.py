"""A small client of the served image: health, a completion, a stream. Standard library only."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import TYPE_CHECKING

from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Callable

TOKENS = 48
_NO_ANSWER = (OSError, http.client.HTTPException, ValueError, LookupError, TypeError)


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

    def connect(self) -> None:
        self.sock = self._connect(self.port)
        self.sock.settimeout(self.timeout)


class Client:
    """Speaks to the server on a port about one model; CheckFailed says what went wrong."""

    def __init__(self, port: int, model: str, connect: Callable[[int], socket.socket] = dial) -> None:
        self.port, self.model, self._connect = port, model, connect

    def healthy(self) -> bool:
        """Return whether GET /health says yes."""
        connection = _Connection(self.port, self._connect, 10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def complete(self, prompt: str) -> str:
        """Return what the model says after ``prompt``."""
        try:
            response = self._post(prompt, stream=False)
            text: str = json.loads(response.read())["choices"][0]["text"]
        except _NO_ANSWER as error:
            raise CheckFailed(f"POST /v1/completions: no answer that makes sense: {error!r}") from error
        return text

    def stream(self, prompt: str) -> tuple[str, float]:
        """Return the same, streamed, and the seconds to its first piece."""
        start, first, text, done = time.monotonic(), 0.0, "", False
        try:
            for line in self._post(prompt, stream=True):
                data = line.decode().strip()
                if data == "data: [DONE]":
                    done = True
                elif data.startswith("data: "):
                    choices = json.loads(data.removeprefix("data: "))["choices"]
                    piece = "".join(choice.get("text", "") for choice in choices)
                    first = first or (time.monotonic() - start if piece else 0.0)
                    text += piece
        except _NO_ANSWER as error:
            raise CheckFailed(f"streaming: no answer that makes sense: {error!r}") from error
        if not done:
            raise CheckFailed("the stream ended without [DONE]")
        return text, first

    def _post(self, prompt: str, *, stream: bool) -> http.client.HTTPResponse:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": TOKENS,
            "temperature": 0,
            "stream": stream,
        }
        connection = _Connection(self.port, self._connect, 300)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise CheckFailed(f"POST /v1/completions: status {response.status}: {response.read(300)!r}")
        return response
