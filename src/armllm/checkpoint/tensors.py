"""What holds named tensors: a folder of safetensors files, a GGUF file, or one of them scaled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


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
