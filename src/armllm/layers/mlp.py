"""The gated feed-forward network of today's decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.activation import gated
from armllm.layers.linear import load_linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from armllm.checkpoint.weights import Weights

SEPARATE = ("gate_proj", "up_proj")


class GatedMLP:
    """down(activation(gate(x)) * up(x)) (Shazeer 2020).

    ``names``: of gate and up in the checkpoint, or one name for both in one tensor, gate first.
    """

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        size: int,
        *,
        activation: str,
        bias: bool = False,
        names: tuple[str, ...] = SEPARATE,
        down: str = "down_proj",
    ) -> None:
        parts: Mapping[str, int] = dict.fromkeys(names, 2 * size // len(names))
        self.gate_up_proj = load_linear(weights, parts, hidden_size, bias=bias)
        self.down_proj = load_linear(weights, {down: hidden_size}, size, bias=bias)
        self.activation = gated(activation)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.down_proj(self.activation(self.gate_up_proj(x)))
