"""What processes send each other arrives as it was, and what is no message is an error."""

from __future__ import annotations

import json
import socket
import threading

import pytest
import torch

from armllm.engine.messages import LENGTH, LONGEST_HEAD, Link, read_bytes, written
from armllm.errors import EngineError


def test_values_and_tensors_arrive_as_they_were():
    """Those without elements, of a single one whose stride is 0, and larger ones than a buffer too."""
    message = {
        "text": "é",
        "none": None,
        "nested": {"a": [1, 2.5, True]},
        "half": torch.randn(300, 200).bfloat16(),
        "empty": torch.empty(0, 4),
        "one": torch.ones(1, dtype=torch.int64).expand(1),
        "turned": torch.arange(6, dtype=torch.int32).view(2, 3).t(),
    }
    near, far = (Link(end) for end in socket.socketpair())
    sending = threading.Thread(target=near.send, args=(message,))
    sending.start()
    found = far.receive()
    sending.join()
    near.close()
    with pytest.raises(EOFError):
        far.receive()
    far.close()
    for other in (found, read_bytes(b"".join(written(message)))):
        assert other.keys() == message.keys()
        for name, value in message.items():
            if isinstance(value, torch.Tensor):
                assert other[name].dtype == value.dtype
                assert torch.equal(other[name], value)
            else:
                assert other[name] == value


def head(tensors, values=None):
    text = json.dumps({"values": values or {}, "tensors": tensors}).encode()
    return LENGTH.pack(len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        LENGTH.pack(LONGEST_HEAD + 1),
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(3) + b"\xff\xff\xff",
        head([["x", "float32", [1 << 40]]]),
        head([["x", "float32", [-1]]]),
        head([["x", "object", [1]]]),
        head([["x", "float32"]]),
        head([["x", "float32", ["a"]]]),
        head([["x", "float32", 4]]),
        head([["x", "float32", [0, 1 << 62, 1 << 62]]]),
        head([["x", "float32", [0, 10**30]]]),
        LENGTH.pack(200_000) + b"[" * 200_000,
    ],
)
def test_what_is_no_message_is_an_error_before_memory_is_taken(data):
    with pytest.raises(EngineError, match="can't be read"):
        read_bytes(data)
