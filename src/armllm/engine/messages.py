"""What the processes of one engine send each other: named JSON values and tensors, one after the other.

Nothing of a message is executed, so its reader need not trust who wrote it further than with its memory.
"""

from __future__ import annotations

import contextlib
import functools
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

from armllm.checkpoint.adapter import Adapter, LowRank
from armllm.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

# of JSON values, and of tensors
Message = dict[str, Any]

LENGTH = struct.Struct("<I")
LONGEST_HEAD = 1 << 20
LARGEST_TENSOR = 1 << 34  # bytes
BUFFER = 1 << 16  # of what is read
SHORT_HEAD = 1 << 10  # bytes, of those that are read once and remembered
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
}


def written(message: Message) -> list[Any]:
    """The message in parts, all of them buffers: a head, and the bytes of each tensor."""
    values, tensors, kinds = {}, [], []
    for name, value in message.items():
        if isinstance(value, Tensor):
            tensors.append(_array(value if value.is_contiguous() else value.contiguous()))
            kinds.append((name, value.dtype, value.shape))
        else:
            values[name] = value
    return [_head(values, kinds) if values else _plain_head(tuple(kinds)), *tensors]


Kind = tuple[str, torch.dtype, torch.Size]


def _head(values: Message, kinds: Iterable[Kind]) -> bytes:
    tensors = [(name, str(dtype).removeprefix("torch."), tuple(shape)) for name, dtype, shape in kinds]
    text = json.dumps({"values": values, "tensors": tensors}, separators=(",", ":")).encode()
    if len(text) > LONGEST_HEAD:
        raise EngineError(f"a message between processes has a head of {len(text)} bytes")
    return LENGTH.pack(len(text)) + text


@functools.lru_cache(256)
def _plain_head(kinds: tuple[Kind, ...]) -> bytes:
    """That of a message without other values; those of steps are alike."""
    return _head({}, kinds)


def read(fill: Callable[[memoryview], None]) -> Message:
    """The message that `written` made; ``fill`` reads its bytes into memory, in order.

    EngineError if it is none.
    """
    try:
        (length,) = LENGTH.unpack(_take(fill, LENGTH.size))
        if length > LONGEST_HEAD:
            raise EngineError(f"its head would have {length} bytes")
        text = bytes(_take(fill, length))
        values, kinds = _read_short(text) if length <= SHORT_HEAD else _read_head(text)
        message = dict(values)
        for name, dtype, shape in kinds:
            tensor = message[name] = torch.empty(shape, dtype=dtype)
            fill(_memory(tensor))
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:  # a depth, a shape
        raise EngineError(f"a message between processes can't be read: {error}") from None
    return message


def _read_head(text: bytes) -> tuple[Message, list[tuple[str, torch.dtype, list[int]]]]:
    head = json.loads(text)
    kinds = []
    for name, dtype, shape in head["tensors"]:
        if min(shape, default=0) < 0 or math.prod(shape) * DTYPES[dtype].itemsize > LARGEST_TENSOR:
            raise EngineError(f"it has a tensor of shape {shape}")
        kinds.append((name, DTYPES[dtype], shape))
    return dict(head["values"]), kinds


_read_short = functools.lru_cache(256)(_read_head)


def read_bytes(data: bytes) -> Message:
    """The same of bytes."""
    stream = io.BytesIO(data)
    return read(lambda memory: _fill(stream, memory))


def as_message(adapter: Adapter) -> Message:
    """An adapter for `adapter_of` in another process."""
    message: Message = {"adapter": adapter.name, "scalings": {}}
    for name, change in adapter.matrices.items():
        message["scalings"][name] = change.scaling
        factors = {"a": change.a, "b": change.b, "magnitude": change.magnitude}
        message |= {f"{name}:{factor}": value for factor, value in factors.items() if value is not None}
    return message


def adapter_of(message: Message) -> Adapter:
    """What `as_message` wrote."""
    matrices = {
        name: LowRank(message[f"{name}:a"], message[f"{name}:b"], scaling, message.get(f"{name}:magnitude"))
        for name, scaling in message["scalings"].items()
    }
    return Adapter(message["adapter"], max(len(change.a) for change in matrices.values()), matrices)


class Link:
    """Messages through a stream socket, in both directions. Several threads may send, and one receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream: Any = connection.makefile("rb", buffering=BUFFER)
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """OSError if the other end is gone, or does not take it in time (`limit_sending`)."""
        parts = written(message)
        with self._sending:
            done = self._connection.sendmsg(parts)
            for part in parts:
                data = memoryview(part)
                if done < data.nbytes:
                    self._connection.sendall(data.cast("B")[done:])
                done = max(0, done - data.nbytes)

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


def _memory(tensor: Tensor) -> memoryview:
    data: Any = _array(tensor).reshape(-1).view(np.uint8)
    return memoryview(data)


def _array(tensor: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = (tensor.view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array
