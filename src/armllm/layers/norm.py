"""Root mean square layer normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels

if TYPE_CHECKING:
    from armllm.models.loader import Weights


class RMSNorm:
    """Normalises rows of ``x[T, size]`` and scales them by the checkpoint's ``weight[size]``."""

    def __init__(self, weights: Weights, size: int, eps: float) -> None:
        self.weight = weights.take("weight", size)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.rms_norm(out, x, self.weight, self.eps)
        return out

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Residual += x, then x = norm(residual), both in place."""
        kernels.fused_add_rms_norm(x, residual, self.weight, self.eps)
