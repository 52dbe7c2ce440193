"""Quantized matrices: small integers with scales, and the kernels' own form of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from armllm.kernels import PackedWeight, Values


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegerWeight:
    """w[n, k] = scales[n, g] * (q[n, k] - zeros[n, g]), where k is in the g-th of G equal groups.

    q int8 ``[N, K]``; scales fp32 ``[N, G]``; zeros int8 ``[N, G]`` or None; offsets fp32 ``[N, G]``, in
    place of zeros, are added to scales * q; bits 4 or 8, q in that range around zero. values: of 8 bits, the
    table that has all of q (`armllm.kernels.pack_weight`). columns int64 ``[K]``: q's column k belongs to
    input columns[k]; None: to input k.
    input_scale: what inputs are divided by before they are rounded to 8 bits; None: by each row's own.
    input_zero: what is added then, 0 where each row has its own; None: inputs are rounded symmetrically.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor | None
    bits: int
    values: Values = "integers"
    offsets: Tensor | None = None
    columns: Tensor | None = None
    input_scale: float | None = None
    input_zero: int | None = None

    @property
    def num_groups(self) -> int:
        """Scales per row."""
        return self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """The matrix in fp32, columns in the order of the inputs."""
        rows, inputs = self.q.shape
        grouped = self.q.float().view(rows, self.num_groups, inputs // self.num_groups)
        if self.zeros is not None:
            grouped -= self.zeros.float().unsqueeze(-1)
        grouped *= self.scales.unsqueeze(-1)
        if self.offsets is not None:
            grouped += self.offsets.unsqueeze(-1)
        matrix = grouped.view(rows, inputs)
        if self.columns is None:
            return matrix
        ordered = torch.empty_like(matrix)
        ordered[:, self.columns] = matrix
        return ordered

    def joins(self, other: IntegerWeight) -> bool:
        """Whether both can be one matrix, rows of the other after these."""
        if (self.columns is None) != (other.columns is None):
            return False
        if self.columns is not None and not torch.equal(self.columns, other.columns):  # type: ignore[arg-type]
            return False
        if (self.input_scale, self.input_zero) != (other.input_scale, other.input_zero):
            return False
        return self._form() == other._form()

    def rows(self, take: Callable[[Tensor], Tensor]) -> IntegerWeight:
        """The rows that ``take`` takes of a tensor of all."""
        return dataclasses.replace(
            self,
            q=take(self.q),
            scales=take(self.scales),
            zeros=None if self.zeros is None else take(self.zeros),
            offsets=None if self.offsets is None else take(self.offsets),
        )

    def _form(self) -> tuple[int, Values, int, bool, bool]:
        return self.bits, self.values, self.num_groups, self.zeros is None, self.offsets is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp8Matrix:
    """w[n, k] = values[n, k] * scales[n, k // group_size]; group_size 0: a row has one scale.

    values float8_e4m3fn ``[N, K]``; scales fp32 ``[N, G]``. where: file and tensor, for errors.
    """

    where: str
    values: Tensor
    scales: Tensor
    group_size: int

    def rows(self, take: Callable[[Tensor], Tensor]) -> Fp8Matrix:
        """The rows that ``take`` takes of a tensor of all."""
        values = take(self.values.view(torch.uint8)).view(self.values.dtype)
        return dataclasses.replace(self, values=values, scales=take(self.scales))

    @property
    def has_nan(self) -> bool:
        """Whether a value is a NaN."""
        return bool((self.values.view(torch.uint8) & 127).eq(127).any())


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A weight as the kernels take it. columns int64 ``[K]``: the order of its inputs, None for their own.

    input_scale: what all inputs are divided by before they are rounded; None: by each row's own.
    input_zero: what is added then, 0 where each row has its own; None: nothing.
    """

    weight: PackedWeight
    columns: Tensor | None
    input_scale: float | None
    input_zero: int | None


def stack(weights: Sequence[IntegerWeight]) -> IntegerWeight:
    """One matrix of all rows; each joins the next."""
    if len(weights) == 1:
        return weights[0]
    zeros = [weight.zeros for weight in weights if weight.zeros is not None]
    offsets = [weight.offsets for weight in weights if weight.offsets is not None]
    return dataclasses.replace(
        weights[0],
        q=torch.cat([weight.q for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        zeros=torch.cat(zeros) if zeros else None,
        offsets=torch.cat(offsets) if offsets else None,
    )
