"""Root mean square layer normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels

if TYPE_CHECKING:
    from armllm.models.loader import Weights


class RMSNorm:
    """Normalises the last dimension of ``x[..., size]`` and scales it by ``weight[size]``."""

    def __init__(self, weights: Weights, size: int, eps: float) -> None:
        self.weight = weights.take("weight", size)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        kernels.rms_norm(out, rows, self.weight, self.eps)
        return out.view(x.shape)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Residual += x, then x = norm(residual), both in place."""
        kernels.fused_add_rms_norm(x, residual, self.weight, self.eps)
