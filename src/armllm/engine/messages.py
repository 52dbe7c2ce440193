"""What the processes of one engine send each other: named JSON values and tensors, one after the other.

Nothing of a message is executed, so its reader need not trust who wrote it further than with its memory.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from armllm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

# of JSON values, and of tensors
Message = dict[str, Any]

LENGTH = struct.Struct("<I")
LONGEST_HEAD = 1 << 20
LARGEST_TENSOR = 1 << 34  # bytes
JOINED = 1 << 16  # smaller parts go in one call of the system
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
}


def written(message: Message) -> list[bytes | memoryview]:
    """The message in parts: a head, and the bytes of each tensor."""
    tensors = {name: value for name, value in message.items() if isinstance(value, Tensor)}
    head = {
        "values": {name: value for name, value in message.items() if name not in tensors},
        "tensors": [
            (name, str(value.dtype).removeprefix("torch."), tuple(value.shape))
            for name, value in tensors.items()
        ],
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    if len(text) > LONGEST_HEAD:
        raise EngineError(f"a message between processes has a head of {len(text)} bytes")
    bodies = [_bytes(value.contiguous()) for value in tensors.values()]
    return [LENGTH.pack(len(text)) + text, *bodies]


def read(fill: Callable[[memoryview], None]) -> Message:
    """The message that `written` made; ``fill`` reads its bytes into memory, in order.

    EngineError if it is none.
    """
    try:
        (length,) = LENGTH.unpack(_take(fill, LENGTH.size))
        if length > LONGEST_HEAD:
            raise EngineError(f"its head would have {length} bytes")
        head = json.loads(_take(fill, length))
        message: Message = dict(head["values"])
        for name, dtype, shape in head["tensors"]:
            message[name] = _tensor(fill, dtype, shape)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"a message between processes can't be read: {error}") from None
    return message


def read_bytes(data: bytes) -> Message:
    """The same of bytes."""
    stream = io.BytesIO(data)
    return read(lambda memory: _fill(stream, memory))


class Link:
    """Messages through a stream socket, in both directions. Several threads may send, and one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream: Any = connection.makefile("rb", buffering=JOINED)
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """OSError if the other end is gone, or does not take it in time (`limit_sending`)."""
        parts = written(message)
        with self._sending:
            small = b""
            for part in parts:
                if len(part) >= JOINED:
                    self._connection.sendall(small)
                    self._connection.sendall(part)
                    small = b""
                else:
                    small += part
            self._connection.sendall(small)

    def receive(self) -> Message:
        """EOFError or OSError if the other end is gone."""
        return read(lambda memory: _fill(self._stream, memory))

    def limit_sending(self, seconds: float) -> None:
        """Let `send` wait no longer than this for the other end to read."""
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def close(self) -> None:
        """End it for both ends, and whoever waits at one of them."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._connection.close()


def _fill(stream: io.BufferedReader | io.BytesIO, memory: memoryview) -> None:
    done = 0
    while done < len(memory):
        count = stream.readinto(memory[done:])
        if not count:
            raise EOFError("the other end is gone")
        done += count


def _take(fill: Callable[[memoryview], None], size: int) -> bytearray:
    data = bytearray(size)
    fill(memoryview(data))
    return data


def _tensor(fill: Callable[[memoryview], None], dtype: str, shape: list[int]) -> Tensor:
    if min(shape, default=0) < 0 or math.prod(shape) * DTYPES[dtype].itemsize > LARGEST_TENSOR:
        raise EngineError(f"it has a tensor of shape {shape}")
    tensor = torch.empty(shape, dtype=DTYPES[dtype])
    fill(_bytes(tensor))
    return tensor


def _bytes(tensor: Tensor) -> memoryview:
    array = tensor.view(torch.int16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()
    data: Any = array.reshape(-1).view(np.uint8)
    return memoryview(data)
