"""Random weights in place of a checkpoint's files: for measurements without a download of gigabytes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from armllm.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.mapping import Span

LARGEST = 1e-3  # as in vLLM: no product overflows, and no logit is NaN


class DummyTensors:
    """Whatever tensors a model asks for, with values between -0.001 and 0.001.

    The same name and shape always have the same values, so processes that share a model agree. ``folder`` has
    config.json; a .gguf file or quantized weights are RequestError.
    """

    def __init__(self, folder: Path, *, quantized: bool = False) -> None:
        if quantized or folder.is_file():
            raise RequestError(
                f"load_format dummy makes floating-point weights, and {folder} describes quantized ones:"
                " name the checkpoint that they were made from, and a quantization"
            )
        self.folder = folder
        self._shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        """Have this tensor from now on."""
        self._shapes.setdefault(name, shape)

    def names(self) -> set[str]:
        """All tensors that were requested until now."""
        return set(self._shapes)

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Float32, and the requested shape."""
        return "F32", self._shapes[name]

    def read(self, name: str) -> Tensor:
        """Random values of this name."""
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.empty(self._shapes[name]).uniform_(-LARGEST, LARGEST, generator=generator)

    def where(self, name: str) -> Path:  # noqa: ARG002 - tensors of all names are equally nowhere
        """The folder that errors name."""
        return self.folder

    def spans(self) -> list[Span]:
        """No file is mapped."""
        return []
