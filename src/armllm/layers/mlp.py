"""Feed-forward networks: the gated one of today's decoders, and the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.activation import gated
from armllm.layers.linear import load_linear
from armllm.layers.ranks import Cut, current_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        # each rank's gates beside its ups, which it multiplies before the ranks gather
        blocks = 2 // len(names)
        self.gate_up_proj = load_linear(weights, parts, hidden_size, bias=bias, gathered=False, blocks=blocks)
        self.down_proj = load_linear(weights, {down: hidden_size}, size, bias=bias)
        self.activation = gated(activation)
        ranks = current_ranks()
        self.gather = None if ranks is None else Cut(ranks).gatherer([size])

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        activated = self.activation(self.gate_up_proj(x))
        return self.down_proj(activated if self.gather is None else self.gather(activated))


class PlainMLP:
    """down(activation(up(x))); ``names``: of up and down in the checkpoint."""

    def __init__(
        self,
        weights: Weights,
        hidden_size: int,
        size: int,
        *,
        activation: Callable[[Tensor], Tensor],
        bias: bool,
        names: tuple[str, str],
    ) -> None:
        up, down = names
        self.up = load_linear(weights, {up: size}, hidden_size, bias=bias)
        self.down = load_linear(weights, {down: hidden_size}, size, bias=bias)
        self.activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.down(self.activation(self.up(x)))
