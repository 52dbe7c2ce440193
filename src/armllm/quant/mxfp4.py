"""MXFP4: checkpoints with quant_method "mxfp4", as gpt-oss is published, and those of compressed-tensors.

A matrix ``name[N, K]`` is ``name_blocks`` uint8 ``[..., N, K / 32, 16]``, two values of 4 bits in a byte, the
first in the low bits, and ``name_scales`` uint8 ``[..., N, K / 32]``, exponents of two with a bias of 127.
In compressed-tensors these are ``name.weight_packed`` ``[N, K / 2]`` and ``name.weight_scale``.
Source: OCP Microscaling Formats (MX) 1.0, where the values are called E2M1 and the scales E8M0.

Twice a value is an integer up to 12, which the kernels look up in a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.scheme import Scheme
from armllm.quant.compressed_tensors import read_targets
from armllm.quant.integers import IntegerFormat

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

BLOCK = 32
STORED = Scheme(bits=8, group_size=BLOCK, values="e2m1")
NOT_A_NUMBER = 255  # among scales
COMPRESSED = "mxfp4-pack-quantized"
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)


class MXFP4(IntegerFormat):
    """quant_method "mxfp4"; a matrix is quantized if the checkpoint has its blocks."""

    method = "mxfp4"

    @classmethod
    def of(cls, reader: ConfigReader) -> MXFP4:
        """Read config.json's object; modules_to_not_convert only repeats what the tensors are."""
        names = reader.get("modules_to_not_convert", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise reader.error(f"modules_to_not_convert must be a list of names, not {names!r}")
        return cls()

    def __str__(self) -> str:
        return "mxfp4"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:  # noqa: ARG002
        """Where the checkpoint has blocks."""
        return STORED if weights.has(f"{name}_blocks") else None

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Blocks and scales must be there."""
        self.claim_stack(weights, name, shape, scheme)

    def claim_stack(
        self, weights: CheckingWeights, name: str, shape: tuple[int, ...], scheme: Scheme
    ) -> None:
        """The same for ``[..., N, K]``."""
        *outer, rows, inputs = shape
        if inputs % BLOCK:
            raise weights.error(f"{name}_blocks", f"can't have blocks of {BLOCK} of {inputs} inputs")
        count = outer[0] if outer else 1
        size = count * scheme.num_bytes(rows, inputs)
        blocks = (*outer, rows, inputs // BLOCK)
        weights.claim(f"{name}_blocks", (*blocks, BLOCK // 2), dtypes=("U8",), num_bytes=size)
        weights.claim(f"{name}_scales", blocks, dtypes=("U8",), num_bytes=0)

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix, exactly."""
        del shape, scheme
        return self.read_stack(weights, name)[0]

    def read_stack(self, weights: LoadingWeights, name: str) -> list[IntegerWeight]:
        """The matrices of a stack, exactly; CheckpointError where a scale is no number."""
        blocks, scales = weights.read(f"{name}_blocks"), _read_scales(weights, f"{name}_scales")
        stacked = blocks.reshape(-1, *blocks.shape[-3:]), scales.reshape(-1, *scales.shape[-2:])
        return [_matrix(values.flatten(1), exponents) for values, exponents in zip(*stacked, strict=True)]


class CompressedMXFP4(IntegerFormat):
    """quant_method "compressed-tensors" of MXFP4 only; a matrix is one if the checkpoint has it packed."""

    method = "compressed-tensors"

    @classmethod
    def of(cls, reader: ConfigReader) -> CompressedMXFP4:
        """Read config.json's object; what is packed only repeats the targets, which must be matrices."""
        section = reader.section("config_groups")
        for name in section.values:
            read_targets(section.section(name))
        return cls()

    def __str__(self) -> str:
        return f"{self.method} ({COMPRESSED})"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:  # noqa: ARG002
        """Where the checkpoint has it packed."""
        return STORED if weights.has(f"{name}.weight_packed") else None

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Values and scales must be there."""
        rows, inputs = shape
        if inputs % BLOCK:
            raise weights.error(f"{name}.weight_packed", f"can't have groups of {BLOCK} of {inputs} inputs")
        size = scheme.num_bytes(rows, inputs)
        weights.claim(f"{name}.weight_packed", (rows, inputs // 2), dtypes=("U8",), num_bytes=size)
        weights.claim(f"{name}.weight_scale", (rows, inputs // BLOCK), dtypes=("U8",), num_bytes=0)

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix, exactly; CheckpointError where a scale is no number."""
        del shape, scheme
        scales = _read_scales(weights, f"{name}.weight_scale")
        return _matrix(weights.read(f"{name}.weight_packed"), scales)


def is_compressed(reader: ConfigReader) -> bool:
    """Whether all groups of a "compressed-tensors" object are MXFP4."""
    form = reader.get("format", "")
    section = reader.section("config_groups")
    return all(section.section(name).get("format", form) == COMPRESSED for name in section.values)


def _read_scales(weights: LoadingWeights, name: str) -> Tensor:
    scales = weights.read(name)
    if (scales == NOT_A_NUMBER).any():
        raise weights.error(name, f"has scales of {NOT_A_NUMBER}, which stands for NaN")
    return scales


def _matrix(packed: Tensor, exponents: Tensor) -> IntegerWeight:
    """``[N, K / 2]`` and ``[N, K / 32]`` as integers and scales."""
    return IntegerWeight(q=doubled(packed), scales=_halved(exponents), zeros=None, bits=8, values="e2m1")


def doubled(packed: Tensor) -> Tensor:
    """Twice the values of bytes ``[N, K / 2]``, int8 ``[N, K]``."""
    table = torch.tensor([*_DOUBLED, *(-value for value in _DOUBLED)], dtype=torch.int8)
    both = torch.stack((table.repeat(16), table.repeat_interleave(16)), dim=-1)
    return both.view(torch.int16).flatten()[packed.int()].view(torch.int8)


def _halved(exponents: Tensor) -> Tensor:
    """Half the scales, fp32; the smallest is 2^-128, which fp32 holds as a subnormal number."""
    return torch.tensor([2.0 ** (exponent - 128) for exponent in range(NOT_A_NUMBER)])[exponents.int()]
