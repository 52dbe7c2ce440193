"""Round to nearest: a floating-point matrix to small integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from armllm.quant.scheme import Scheme

AT_A_TIME = 1 << 18  # elements that are held in fp32 at once: intermediates stay in the cache


def round_matrix(matrix: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor, Tensor | None]:
    """``matrix[N, K]`` to q int8 ``[N, K]``, scales fp32 ``[N, G]`` and zeros int8 ``[N, G]`` or None.

    Symmetric: scale = max|w| / 7.5 (127.5 for 8 bits), so that no weight is further than half a step from its
    integer, the clamped largest one included. Scales are rounded to the matrix's dtype, in which checkpoints
    store them. With zero points, the range from the least to the greatest weight, zero included, has 15
    steps. ValueError where a weight is NaN or infinite.
    """
    rows, inputs = matrix.shape
    groups = scheme.num_groups(inputs)
    q = torch.empty(rows, inputs, dtype=torch.int8)
    scales = torch.empty(rows, groups, dtype=torch.float32)
    zeros = None if scheme.symmetric else torch.empty(rows, groups, dtype=torch.int8)
    step = max(1, AT_A_TIME // inputs)
    for first in range(0, rows, step):
        part = slice(first, first + step)
        values = matrix[part].float().view(-1, groups, inputs // groups)
        if zeros is None:
            scale, integers = _symmetric(values, scheme.bits, matrix.dtype)
        else:
            scale, integers, zeros[part] = _with_zero_points(values, scheme.bits)
        if not scale.isfinite().all():
            raise ValueError("a weight is NaN or infinite")
        q[part], scales[part] = integers.view(-1, inputs), scale
    return q, scales, zeros


def _symmetric(values: Tensor, bits: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scales ``[N, G]`` and integers of ``values[N, G, size]``."""
    greatest = 2 ** (bits - 1) - 1
    scale = _no_zero((values.abs().amax(-1) / (greatest + 0.5)).to(dtype).float())
    integers = (values / scale.unsqueeze(-1)).round().clamp(-greatest - 1, greatest).to(torch.int8)
    return scale, integers


def _with_zero_points(values: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scales, integers and zero points."""
    least, greatest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = values.amin(-1).clamp_max(0), values.amax(-1).clamp_min(0)
    scale = _no_zero((high - low) / (greatest - least))
    zeros = (least - low / scale).round().clamp(least, greatest)
    integers = (values / scale.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(least, greatest)
    return scale, integers.to(torch.int8), zeros.to(torch.int8)


def _no_zero(scale: Tensor) -> Tensor:
    """A scale of one where all weights are zero."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
