"""Checkpoints of AutoAWQ, version "gemm".

Source: AutoAWQ's utils/packing_utils.py. ``qweight`` int32 ``[K, N / 8]`` and ``qzeros`` ``[G, N / 8]`` hold
eight outputs per word, in the order 0 2 4 6 1 3 5 7 from the lowest bits; ``scales`` is ``[G, N]``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.scheme import Scheme
from armllm.quant.bit_packing import centered, unpack
from armllm.quant.checks import checked_scales
from armllm.quant.gptq import FLOATS, count_groups, grouping, read_group_size
from armllm.quant.integers import IntegerFormat

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

PER_WORD = 8
# where in a word the eight outputs stand
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AWQ(IntegerFormat):
    """quant_method "awq". group_size 0: one per row."""

    group_size: int
    zero_points: bool
    method = "awq"

    @classmethod
    def of(cls, reader: ConfigReader) -> AWQ:
        """Read config.json's object, or refuse by name what it asks for."""
        bits = reader.integer("bits", reader.get("w_bit", 4))
        if bits != 4:
            raise reader.error(f"AWQ with {bits} bits is not supported, only 4")
        for key in ("version", "checkpoint_format", "format"):
            form = str(reader.get(key, "gemm")).lower()
            if form != "gemm":
                raise reader.error(f"AWQ's {key} {form!r} is not supported, only 'gemm'")
        key = "group_size" if reader.has("group_size") else "q_group_size"
        return cls(
            group_size=read_group_size(reader, key), zero_points=reader.boolean("zero_point", default=True)
        )

    def __str__(self) -> str:
        size = f"groups of {self.group_size}" if self.group_size else "channelwise"
        return f"{self.method} (4 bits, {size}{', zero points' if self.zero_points else ''})"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """None where the checkpoint has no packed matrix of this name."""
        if not weights.has(f"{name}.qweight"):
            return None
        size = grouping(self.group_size, in_features)
        return Scheme(bits=4, group_size=size, symmetric=not self.zero_points)

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Values, scales and zero points."""
        rows, inputs = shape
        if rows % PER_WORD:
            raise weights.error(f"{name}.qweight", f"AWQ packs multiples of 8 outputs, not {rows}")
        groups = count_groups(weights, name, self.group_size, inputs)
        num_packed = rows // PER_WORD
        size = scheme.num_bytes(rows, inputs)
        weights.claim(f"{name}.qweight", (inputs, num_packed), dtypes=("I32",), num_bytes=size)
        if self.zero_points or weights.has(f"{name}.qzeros"):
            weights.claim(f"{name}.qzeros", (groups, num_packed), dtypes=("I32",), num_bytes=0)
        weights.claim(f"{name}.scales", (groups, rows), dtypes=FLOATS, num_bytes=0)

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix as stored."""
        del shape, scheme  # the tensors say them
        zeros = _outputs(weights.read(f"{name}.qzeros")) if weights.has(f"{name}.qzeros") else None
        if not self.zero_points and zeros is not None and zeros.any():
            raise weights.error(
                f"{name}.qzeros",
                "has zero points that are not in the middle, but config.json says there are none",
            )
        return IntegerWeight(
            q=_outputs(weights.read(f"{name}.qweight")),
            scales=checked_scales(weights, f"{name}.scales").t().contiguous(),
            zeros=zeros if self.zero_points else None,
            bits=4,
        )


def _outputs(packed: Tensor) -> Tensor:
    """int32 ``[R, N / 8]`` to int8 ``[N, R]`` around zero."""
    values = unpack(packed, 4).unflatten(-1, (-1, PER_WORD))[..., PLACES]  # type: ignore[no-untyped-call]
    return centered(values.flatten(-2).t().contiguous(), 4)
