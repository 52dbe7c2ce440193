"""What holds named tensors: a folder of safetensors files, a GGUF file, or one of them scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.matrix import Fp8Matrix


class Tensors(Protocol):
    """Named tensors, wherever they come from; ``folder`` is named in errors."""

    folder: Path

    def names(self) -> set[str]:
        """All tensors."""

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape."""

    def read(self, name: str) -> Tensor:
        """A tensor."""

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""


@runtime_checkable
class Fp8Tensors(Tensors, Protocol):
    """Tensors of which some can be had as E4M3 with scales, besides decoded."""

    def fp8_group(self, name: str) -> int | None:
        """How many inputs share a scale, 0: all; None: the tensor comes only decoded."""

    def read_fp8(self, name: str) -> Fp8Matrix:
        """A tensor that has an `fp8_group`."""
