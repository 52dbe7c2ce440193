"""Rounding: a floating-point matrix to nearest, and integers into a form that the kernels have."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.scheme import Scheme, largest_group

AT_A_TIME = 1 << 16  # elements that are held in fp32 at once: they stay in the cache from pass to pass


def round_matrix(matrix: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """``matrix[N, K]`` to q int8 ``[N, K]`` and scales fp32 ``[N, G]``.

    scale = max|w| / 7.5 (127.5 for 8 bits), so that no weight is further than half a step from its
    integer, the clamped largest one included. Scales are rounded to the matrix's dtype, in which checkpoints
    store them. ValueError where a weight is NaN or infinite, or the scheme has zero points.
    """
    if not scheme.symmetric:
        raise ValueError(f"nothing is rounded to {scheme}")
    rows, inputs = matrix.shape
    groups = scheme.num_groups(inputs)
    q = torch.empty(rows, inputs, dtype=torch.int8)
    scales = torch.empty(rows, groups, dtype=torch.float32)
    step = max(1, AT_A_TIME // inputs)
    for first in range(0, rows, step):
        part = slice(first, first + step)
        values = matrix[part].to(torch.float32, copy=True)
        scale = _round(values.view(-1, groups, inputs // groups), scheme.bits, matrix.dtype)
        if not scale.isfinite().all():
            raise ValueError("a weight is NaN or infinite")
        q[part], scales[part] = values, scale
    return q, scales


def _round(values: Tensor, bits: int, dtype: torch.dtype) -> Tensor:
    """Scales ``[N, G]`` of ``values[N, G, size]``, which become integers in their place."""
    greatest = 2 ** (bits - 1) - 1
    scale: Tensor = (values.abs().amax(-1) / (greatest + 0.5)).to(dtype).float()
    scale[scale == 0] = 1  # all weights are zero
    values.div_(scale.unsqueeze(-1)).round_().clamp_(-greatest - 1, greatest)
    return scale


def fit(weight: IntegerWeight) -> tuple[IntegerWeight, float | None]:
    """The matrix in a form that the kernels have.

    Large groups are cut into smaller ones, which is exact. 8 bits in groups that are no multiple of 32 are
    rounded again, with one scale per row: then the second value is the relative error, ||w' - w|| / ||w||.
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
