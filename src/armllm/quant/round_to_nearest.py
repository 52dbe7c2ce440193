"""Floating-point matrices, rounded while they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.checkpoint.scheme import Scheme, scheme_for
from armllm.errors import RequestError
from armllm.quant.integers import IntegerFormat
from armllm.quant.rounding import from_float

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.matrix import IntegerWeight
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

# Heads, routers of experts, the gate of a shared one, decays and strengths of delta nets: small, or too
# dear in quality.
LEFT_ALONE = (
    *("lm_head", "embed_out", "output", "score", "gate", "router", "shared_expert_gate"),
    *("in_proj_ba", "in_proj_a", "in_proj_b"),
)


class RoundToNearest(IntegerFormat):
    """``--quantization``: every linear layer's matrix but those `LEFT_ALONE`."""

    method = "rtn"

    def __init__(self, scheme: str) -> None:
        self.name = scheme

    def __str__(self) -> str:
        return f"rounded to {self.name} while loading"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """One scheme for all; RequestError names the matrix whose inputs its groups don't divide."""
        if name in LEFT_ALONE:
            return None
        try:
            return scheme_for(self.name, in_features)
        except ValueError as error:
            raise RequestError(f"quantization {self.name!r}: {weights.prefix}{name}: {error}") from None

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """The floating-point matrix must be there."""
        weights.claim(f"{name}.weight", shape, num_bytes=scheme.num_bytes(*shape))

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix, rounded."""
        del shape
        matrix = weights.read(f"{name}.weight")
        if weights.own is not None:
            matrix = weights.own.take(matrix)
        return rounded(weights, f"{name}.weight", matrix, scheme)


def rounded(weights: Weights, name: str, matrix: Tensor, scheme: Scheme) -> IntegerWeight:
    """``matrix[N, K]``, which is the tensor ``name`` or a part of it; CheckpointError if it has a NaN."""
    try:
        return from_float(matrix, scheme)
    except ValueError as error:
        raise weights.error(name, f"can't be rounded: {error}") from None
