"""Normalization over the last dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels

if TYPE_CHECKING:
    from armllm.checkpoint.weights import Weights


class RMSNorm:
    """Root mean square normalization of ``x[..., size]`` times ``weight[size]`` (Zhang and Sennrich 2019).

    ``weight_offset`` is added to the weight: 1 for Gemma, whose checkpoints store it that much lower.
    """

    def __init__(self, weights: Weights, size: int, eps: float, *, weight_offset: float = 0.0) -> None:
        self.weight = weights.take("weight", size)
        self.eps = eps
        self.weight_offset = weight_offset

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        kernels.rms_norm(out, rows, self.weight, self.eps, weight_offset=self.weight_offset)
        return out.view(x.shape)

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Residual += x, then x = norm(residual), both in place."""
        kernels.fused_add_rms_norm(x, residual, self.weight, self.eps, weight_offset=self.weight_offset)


class PlainNorm(RMSNorm):
    """Without a weight."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        self.weight = torch.ones(size, dtype=dtype)
        self.eps, self.weight_offset = eps, 0.0


class LayerNorm:
    """Layer normalization of ``x[T, size]`` (Ba et al. 2016); not ``affine``: without weight and bias.

    BERT's first checkpoints call them gamma and beta.
    """

    def __init__(
        self, weights: Weights, size: int, eps: float, *, affine: bool = True, bias: bool = True
    ) -> None:
        scale, shift = ("gamma", "beta") if weights.has("gamma") else ("weight", "bias")
        self.weight = weights.take(scale, size) if affine else torch.ones(size, dtype=weights.dtype)
        self.bias = weights.take(shift, size) if affine and bias else None
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernels.layer_norm(out, x, self.weight, self.bias, self.eps)
        return out

    def add(self, x: Tensor, residual: Tensor) -> None:
        """Residual += x, then x = norm(residual), both in place."""
        kernels.layer_norm(x, x, self.weight, self.bias, self.eps, residual=residual)


class HeadNorm:
    """Layer normalization of each head of ``x[T, heads, head_dim]``, times ``weight[heads, head_dim]``."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight = weight
        self.ones = torch.ones(weight.shape[-1], dtype=weight.dtype)
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.empty_like(rows)
        kernels.layer_norm(out, rows, self.ones, None, self.eps)
        return out.view(x.shape).mul_(self.weight)
