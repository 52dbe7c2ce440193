"""A safetensors file, mapped.

The library checks the header; data are not mapped by it, because its mapping is counted as memory to be
written to, and Linux refuses one that is larger than what the machine has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors
import torch
from torch import Tensor

from armllm.checkpoint.json_file import check_size, parse
from armllm.checkpoint.mapping import map_file, span_of
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
LENGTH_BYTES = 8  # of the number before the header
MAX_HEADER = 32 << 20  # bytes; 90,000 tensors take 14 MB
MAX_BYTES = 1 << 50
MAX_DIMENSIONS = 8
LFS_POINTER = b"version https://git-lfs"


class SafetensorsFile:
    """Names, types and shapes from the header; CheckpointError for a file that is not whole.

    span: where it is mapped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _check_length(path)
            with safetensors.safe_open(path, framework="numpy"):
                self._data = map_file(path)
        except (FileNotFoundError, CheckpointError):
            raise
        except OSError as error:
            raise CheckpointError(f"{path!s:.500} can't be read: {error.strerror or error}") from None
        except (ValueError, safetensors.SafetensorError) as error:
            raise CheckpointError(
                f"{path} can't be read as safetensors ({error!s:.300}); {_advice(path)}"
            ) from None
        self.span = span_of(self._data)
        length = int.from_bytes(self._data[:LENGTH_BYTES], "little")
        self._start = LENGTH_BYTES + length
        self._tensors: dict[str, dict[str, Any]] = parse(self._data[LENGTH_BYTES : self._start])
        self._tensors.pop("__metadata__", None)
        for name, stored in self._tensors.items():
            if len(stored["shape"]) > MAX_DIMENSIONS:
                raise CheckpointError(
                    f"{path}: tensor {name:.200} has {len(stored['shape'])} dimensions;"
                    f" no more than {MAX_DIMENSIONS} are taken"
                )

    def names(self) -> list[str]:
        """All tensors."""
        return list(self._tensors)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""
        stored = self._tensors[name]
        return stored["dtype"], tuple(stored["shape"])

    def read(self, name: str) -> Tensor:
        """A tensor where it is mapped; a copy of one that doesn't lie where its dtype wants it."""
        stored = self._tensors[name]
        dtype, (first, last) = DTYPES.get(stored["dtype"]), stored["data_offsets"]
        if dtype is None:
            raise CheckpointError(
                f"{self._path}: tensor {name:.200} has the type {stored['dtype']}, not read"
            )
        if first == last:
            return torch.empty(stored["shape"], dtype=dtype)
        octets = torch.frombuffer(
            self._data, dtype=torch.uint8, count=last - first, offset=self._start + first
        )
        aligned = octets.data_ptr() % dtype.itemsize == 0
        return (octets if aligned else octets.clone()).view(dtype).view(stored["shape"])


def _check_length(path: Path) -> None:
    """ValueError for a header that is too long to be read."""
    size = check_size(path, MAX_BYTES)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if MAX_HEADER < length <= size:
        raise ValueError(f"its header has {length:,} bytes; one of more than {MAX_HEADER:,} is not read")


def _advice(path: Path) -> str:
    with path.open("rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "it only says where Git LFS keeps the file: run git lfs pull"
    return "it may be truncated: download it again"
