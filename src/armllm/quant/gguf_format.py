"""GGUF files whose matrices are quantized, each by its own type."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from armllm.checkpoint import gguf_blocks
from armllm.checkpoint.gguf_blocks import BLOCKS
from armllm.checkpoint.scheme import Scheme
from armllm.quant.integers import IntegerFormat
from armllm.quant.rounding import from_float, relative_error

if TYPE_CHECKING:
    from armllm.checkpoint.gguf import GGUFCheckpoint
    from armllm.checkpoint.matrix import IntegerWeight
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

# What becomes 8 bits with one scale per row; others are kept as they are.
ROUNDED = ("Q2_K", "Q3_K", "Q5_1", "Q5_K", "Q6_K")
SCHEMES = {kind: Scheme(bits=8) for kind in ROUNDED} | {
    "Q4_0": Scheme(bits=4, group_size=32),
    "Q5_0": Scheme(bits=8, group_size=32),
    "Q8_0": Scheme(bits=8, group_size=32),
    "IQ4_NL": Scheme(bits=8, group_size=32, values="iq4_nl"),
    "IQ4_XS": Scheme(bits=8, group_size=32, values="iq4_nl"),
    "MXFP4": Scheme(bits=8, group_size=32, values="e2m1"),
    "Q4_1": Scheme(bits=4, group_size=32, symmetric=False),
    "Q4_K": Scheme(bits=4, group_size=32, symmetric=False),
}


class GGUFFormat(IntegerFormat):
    """Matrices of the types in `SCHEMES`; others are floating-point."""

    method = "gguf"

    def __str__(self) -> str:
        return "gguf"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """By the tensor's type."""
        del in_features
        return SCHEMES.get(weights.stored_type(f"{name}.weight"))

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """The tensor must be there."""
        weights.claim(f"{name}.weight", shape, dtypes=tuple(BLOCKS), num_bytes=scheme.num_bytes(*shape))

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """Types of integers exactly; those of 5 bits with minima, which would take 10, rounded to 8 again."""
        del shape
        checkpoint = cast("GGUFCheckpoint", weights.checkpoint)
        full_name = f"{weights.prefix}{name}.weight"
        kind, blocks = checkpoint.read_blocks(full_name)
        if kind in (*gguf_blocks.INTEGERS, *gguf_blocks.SHIFTED):
            weight = gguf_blocks.integers(kind, blocks)
            weight = dataclasses.replace(weight, columns=checkpoint.input_order(full_name))
            floats = weight.scales if weight.offsets is None else weight.scales + weight.offsets
            if not floats.isfinite().all():
                raise weights.error(f"{name}.weight", "has scales that are NaN or infinite")
            return weight
        exact = checkpoint.read(full_name)
        try:
            weight = from_float(exact, scheme)
        except ValueError as error:
            raise weights.error(f"{name}.weight", f"can't be rounded: {error}") from None
        weights.rounding_errors.append(relative_error(weight.dequantize(), exact))
        return weight
