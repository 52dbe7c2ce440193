"""Round to nearest: a floating-point matrix to small integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from armllm.quant.scheme import Scheme

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
