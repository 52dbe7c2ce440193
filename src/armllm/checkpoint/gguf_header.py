"""The header of a GGUF file, and its tensors mapped.

Layout: the GGUF specification in ggml's docs/gguf.md, versions 2 and 3. Read here rather than by gguf-py,
which takes many seconds and 600 MB for a vocabulary of 128,000 tokens.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.checkpoint.json_file import check_size
from armllm.checkpoint.mapping import map_file, span_of
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# value types: struct's letters; 8 is a string, 9 an array
NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING, ARRAY = 8, 9
# Tensor types, by ggml.h's numbers. Not gguf-py's table, which brings requests and PyYAML and takes 0.17 s to
# import: a test holds this one against it.
TYPES = {
    **dict(enumerate(("F32", "F16", "Q4_0", "Q4_1"))),
    **dict(enumerate(("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"), 6)),
    **dict(enumerate(("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"), 16)),
    **dict(enumerate(("I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16"), 24)),
    **dict(enumerate(("TQ1_0", "TQ2_0"), 34)),
    **dict(enumerate(("MXFP4", "NVFP4", "Q1_0"), 39)),
}
# Limits of what is read before anything is known of a file. Real headers stay below a quarter of each.
MAX_BYTES = 1 << 50
MAX_HEADER = 64 << 20  # bytes
MAX_VALUES, MAX_TENSORS = 1 << 16, 1 << 16
MAX_ITEMS = 4 << 20  # of an array
MAX_DIMENSIONS = 4  # ggml's own
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """type: ggml's name. shape: outermost dimension first, as in torch. offset: bytes from the start."""

    type: str
    shape: tuple[int, ...]
    offset: int


class GGUFHeader:
    """``values`` by key, ``tensors`` by name; ``span`` is where the file is mapped."""

    def __init__(self, path: Path) -> None:
        try:
            check_size(path, MAX_BYTES)
            self._data = map_file(path)
            self.span = span_of(self._data)
            self._place = 0
            self.values, self.tensors = self._parse()
        except (OSError, ValueError, struct.error, OverflowError) as error:
            raise CheckpointError(
                f"{path} can't be read as GGUF ({error!s:.300}); it may be truncated: download it again"
            ) from None

    def map(self, name: str) -> Tensor:
        """A tensor, mapped from the file: quantized ones as bytes uint8 ``[..., blocks, bytes]``."""
        stored = self.tensors[name]
        if stored.type in BLOCKS:
            block, size = BLOCKS[stored.type]
            shape = (*stored.shape[:-1], stored.shape[-1] // block, size)
            octets = torch.frombuffer(
                self._data, dtype=torch.uint8, count=_product(shape), offset=stored.offset
            )
            return octets.view(shape)
        dtype, count = DTYPES[stored.type], _product(stored.shape)
        return torch.frombuffer(self._data, dtype=dtype, count=count, offset=stored.offset).view(stored.shape)

    def _parse(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}, not 2 or 3")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        if num_tensors > MAX_TENSORS or num_values > MAX_VALUES:
            raise ValueError(f"it announces {num_tensors} tensors and {num_values} values")
        values = {}
        for _ in range(num_values):
            key = self._string()
            values[key] = self._value(self._number("I"))
        found = [self._tensor() for _ in range(num_tensors)]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._place // alignment) * alignment
        tensors = {}
        for name, kind, shape, offset in found:
            tensors[name] = StoredTensor(type=kind, shape=shape, offset=start + offset)
            if kind in BLOCKS and (not shape or shape[-1] % BLOCKS[kind][0]):
                raise ValueError(f"tensor {name} of type {kind} has rows that are not whole blocks")
            size = _num_bytes(kind, shape)
            if start + offset + size > len(self._data):
                raise ValueError(f"tensor {name} ends behind the file")
        return values, tensors

    def _tensor(self) -> tuple[str, str, tuple[int, ...], int]:
        name = self._string()
        count = self._number("I")
        if count > MAX_DIMENSIONS:
            raise ValueError(f"tensor {name:.200} has {count} dimensions, and GGUF's have {MAX_DIMENSIONS}")
        shape = tuple(self._number("Q") for _ in range(count))
        number = self._number("I")
        return name, TYPES.get(number, f"type {number}"), shape[::-1], self._number("Q")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, count = self._number("I"), self._number("Q")
            if inner == ARRAY:
                raise ValueError("a value is an array of arrays")
            if count > MAX_ITEMS:
                raise ValueError(f"a value is an array of {count} items")
            if inner in NUMBERS:
                data = self._take(count * struct.calcsize(NUMBERS[inner]))
                return list(struct.unpack(f"<{count}{NUMBERS[inner]}", data))
            return [self._value(inner) for _ in range(count)]
        if kind not in NUMBERS:
            raise ValueError(f"a value has the unknown type {kind}")
        return self._number(NUMBERS[kind])

    def _number(self, letter: str) -> Any:
        (value,) = struct.unpack(f"<{letter}", self._take(struct.calcsize(letter)))
        return value

    def _string(self) -> str:
        return self._take(self._number("Q")).decode("utf-8")

    def _take(self, size: int) -> bytes:
        start, self._place = self._place, self._place + size
        if self._place > len(self._data):
            raise ValueError("it ends within its header")
        if self._place > MAX_HEADER:
            raise ValueError(f"its header has more than {MAX_HEADER:,} bytes")
        return self._data[start : self._place]


def _num_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Of a tensor in the file; 0 for types that are not read."""
    if kind in BLOCKS:
        block, size = BLOCKS[kind]
        return _product(shape) // block * size
    return _product(shape) * (DTYPES[kind].itemsize if kind in DTYPES else 0)


def _product(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
