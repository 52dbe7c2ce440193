"""Activation functions by the names that config.json gives them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

# One function has several names in transformers: three spellings of GELU's tanh approximation (Hendrycks and
# Gimpel 2016), and SiLU as swish. As written there, they round differently, in the last bit or two.
_SILU = ("silu", "swish")
_GELU = ("gelu", "gelu_python")
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast")
GATED = (*_SILU, *_GELU, *_GELU_TANH, "relu")
PLAIN = (*_SILU, *_GELU, *_GELU_TANH, "relu", "relu2", "quick_gelu")


def gated_kernel(name: str | kernels.ClampedSwiGLU) -> str | kernels.ClampedSwiGLU | None:
    """What the kernels of experts call the activation; None: they don't have it."""
    if isinstance(name, kernels.ClampedSwiGLU):
        return name
    if name in _SILU:
        return "silu"
    if name in _GELU:
        return "gelu"
    return "gelu_tanh" if name in _GELU_TANH else None


def gated(name: str | kernels.ClampedSwiGLU) -> Callable[[Tensor], Tensor]:
    """``x[T, 2 d]`` to activation(x[:, :d]) * x[:, d:], ``[T, d]``; ``name`` is one of `GATED`."""
    if isinstance(name, kernels.ClampedSwiGLU):
        return partial(_clamped_swiglu, name)
    if name == "relu":
        return _relu_and_mul
    op: Callable[[Tensor, Tensor], None] = kernels.silu_and_mul
    if name not in _SILU:
        op = partial(kernels.gelu_and_mul, approximate="tanh" if name in _GELU_TANH else "none")

    def apply(x: Tensor) -> Tensor:
        out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype)
        op(out, x)
        return out

    return apply


def plain(name: str) -> Callable[[Tensor], Tensor]:
    """``x[T, d]`` to activation(x), maybe in place; ``name`` is one of `PLAIN`."""
    if name in _SILU:
        return partial(torch.nn.functional.silu, inplace=True)
    op: Callable[[Tensor, Tensor], None]
    if name in ("relu", "relu2"):
        op = kernels.relu
    elif name == "quick_gelu":
        op = kernels.quick_gelu
    else:
        op = partial(kernels.gelu, approximate="tanh" if name in _GELU_TANH else "none")

    def apply(x: Tensor) -> Tensor:
        op(x, x)
        return x.mul_(x) if name == "relu2" else x

    return apply


def _clamped_swiglu(function: kernels.ClampedSwiGLU, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    gate, up = gate.clamp(max=function.limit), up.clamp(-function.limit, function.limit)
    return gate * torch.sigmoid(function.alpha * gate) * (up + 1)


def _relu_and_mul(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return torch.relu(gate).mul_(up)
