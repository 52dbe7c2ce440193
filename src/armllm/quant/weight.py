"""A matrix of small integers with scales, between the checkpoint's form and the kernels'."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm.quant.rounding import round_matrix
from armllm.quant.scheme import Scheme, largest_group

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntegerWeight:
    """w[n, k] = scales[n, g] * (q[n, k] - zeros[n, g]), where k is in the g-th of G equal groups.

    q int8 ``[N, K]``; scales fp32 ``[N, G]``; zeros int8 ``[N, G]`` or None; offsets fp32 ``[N, G]``, in
    place of zeros, are added to scales * q; bits 4 or 8, q in that range around zero. columns int64 ``[K]``:
    q's column k belongs to input columns[k]; None: to input k.
    input_scale: what inputs are divided by before they are rounded to 8 bits; None: by each row's own.
    input_zero: what is added then, 0 where each row has its own; None: inputs are rounded symmetrically.
    """

    q: Tensor
    scales: Tensor
    zeros: Tensor | None
    bits: int
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

    def _form(self) -> tuple[int, int, bool, bool]:
        return self.bits, self.num_groups, self.zeros is None, self.offsets is None


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


def fit(weight: IntegerWeight) -> tuple[IntegerWeight, float | None]:
    """The matrix in a form that the kernels have.

    Large groups are cut into smaller ones, which is exact. 8 bits in groups that are no multiple of 32 are
    rounded anew, with one scale per row: then the second value is the relative error, ||w' - w|| / ||w||.
    """
    if weight.zeros is not None and not weight.zeros.any():
        weight = dataclasses.replace(weight, zeros=None)
    groups, inputs = weight.num_groups, weight.q.shape[1]
    size = inputs // groups
    smaller = largest_group(size) if groups > 1 else 0
    no_such_groups = groups > 1 and not smaller
    if weight.bits == 8 and no_such_groups:
        exact = weight.dequantize()
        rounded = from_float(exact, Scheme(bits=8))
        rounded = dataclasses.replace(rounded, input_scale=weight.input_scale, input_zero=weight.input_zero)
        return rounded, relative_error(rounded.dequantize(), exact)
    if no_such_groups:
        raise ValueError(f"groups of {size} are no multiple of 32")
    if smaller in {0, size}:
        return weight, None
    times = size // smaller
    zeros = None if weight.zeros is None else weight.zeros.repeat_interleave(times, 1)
    offsets = None if weight.offsets is None else weight.offsets.repeat_interleave(times, 1)
    scales = weight.scales.repeat_interleave(times, 1)
    return dataclasses.replace(weight, scales=scales, zeros=zeros, offsets=offsets), None


def from_float(matrix: Tensor, scheme: Scheme) -> IntegerWeight:
    """``matrix[N, K]`` rounded to nearest, without zero points."""
    q, scales = round_matrix(matrix, scheme)
    return IntegerWeight(q=q, scales=scales, zeros=None, bits=scheme.bits)


def relative_error(rounded: Tensor, exact: Tensor) -> float:
    """||rounded - exact|| / ||exact||, 0 for a matrix of zeros."""
    size = float(exact.norm())
    return float((rounded - exact).norm()) / size if size else 0.0
