"""Printing of vectors, for examples of vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Print the first numbers of a vector and its length."""
    shown = ", ".join(str(float(number)) for number in embeds[:4])
    more = ", ..." if len(embeds) > 4 else ""
    print(f"{prefix}: [{shown}{more}] (size={len(embeds)})")
