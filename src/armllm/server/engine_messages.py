"""The messages between the server's process and the engine's.

A message is a pickle behind its length. The socket has no name, and both ends are this program's own: what a
client sends is never unpickled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket

    from armllm.engine.caller import Caller
    from armllm.engine.facts import EngineFacts
    from armllm.engine.stats import EngineStats
    from armllm.errors import ArmllmError
    from armllm.inputs import PicturePrompt
    from armllm.lora.request import LoRARequest
    from armllm.pooling_params import PoolingParams
    from armllm.sampling_params import SamplingParams

_LENGTH = struct.Struct("<Q")
LONG_MESSAGE = 256 << 10  # bytes; it would hold up the event loop
BEAT_SECONDS = 1.0  # between messages of an engine that has nothing to say


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is ready; ``lines`` describe it to people."""

    facts: EngineFacts
    lines: list[str]
    stats: EngineStats


@dataclasses.dataclass(frozen=True, slots=True)
class NotLoaded:
    """Why there is no engine; ``trace`` is the traceback."""

    error: BaseException
    trace: str

    @classmethod
    def of(cls, error: BaseException, trace: str) -> NotLoaded:
        """An error that the other process can read: of its own type if possible."""
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
        except Exception:  # noqa: BLE001 - any type's own code
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A request. Its outputs and errors come back with its ``key``; the key alone drops it."""

    key: int
    request_id: str
    prompt: list[int] | PicturePrompt
    params: SamplingParams | PoolingParams
    priority: int
    lora_request: LoRARequest | None
    caller: Caller | None


@dataclasses.dataclass(frozen=True, slots=True)
class AdapterChange:
    """Read an adapter, or forget the one with this number; True or an error comes back with the ``key``."""

    key: int
    adapter: LoRARequest | int


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """The engine has failed and serves no request any more."""

    error: ArmllmError


def written(message: Any) -> bytes:
    """A message as bytes."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(content)) + content


def send(connection: socket.socket, message: Any) -> None:
    """Send a message before there is an event loop."""
    connection.sendall(written(message))


def receive(connection: socket.socket) -> Any:
    """The next message, before there is an event loop; EOFError if there is none."""
    (length,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size))
    return pickle.loads(_read_exactly(connection, length))  # noqa: S301 - our own


async def read_message(reader: asyncio.StreamReader) -> Any:
    """The next message, or None at the end."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        content = await reader.readexactly(length)
        if length > LONG_MESSAGE:
            return await asyncio.to_thread(pickle.loads, content)
        return pickle.loads(content)  # noqa: S301 - our own
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    pieces = []
    while length:
        piece = connection.recv(min(length, 1 << 20))
        if not piece:
            raise EOFError
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
