"""Activations, plain and gated, and conversions between storage types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

Approximate = Literal["none", "tanh"]


def _is_tanh(approximate: Approximate) -> bool:
    if approximate not in {"none", "tanh"}:
        raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")
    return approximate == "tanh"


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write ``silu(x[:, :d]) * x[:, d:]`` to ``out``, where silu(g) = g / (1 + exp(-g)).

    ``out`` is [tokens, d] and ``x`` is [tokens, 2 d], both of one dtype: float32, float16 or bfloat16.

    Before the multiplication, the relative error of silu is at most 6e-7 + 2.8e-9 |g|. The reason is exp: it
    is within 2.5 units in the last place and 2.8e-9 times its argument, and 0 or infinite beyond 88.

    This function and the other activations raise ValueError that names the wrong argument.
    """
    extension.silu_and_mul(out, x)


def gelu_and_mul(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``gelu(x[:, :d]) * x[:, d:]`` to ``out``; see `silu_and_mul` for shapes and `gelu` for gelu."""
    (extension.gelu_tanh_and_mul if _is_tanh(approximate) else extension.gelu_and_mul)(out, x)


def gelu(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``x * Phi(x)`` to ``out`` (Hendrycks & Gimpel 2016). Phi is the normal distribution function.

    With ``approximate="tanh"``, Phi is ``(1 + tanh(y)) / 2`` with y = sqrt(2 / pi) (x + 0.044715 x^3).

    ``out`` and ``x`` are [tokens, d] of one dtype. ``out`` may be ``x``. Before the result is rounded to that
    dtype, its relative error is at most 1.6e-6 for x > 0, and 1.4e-6 + 3.2e-8 x^2 below. With tanh it is at
    most 6e-7 + 6.1e-7 |y|.
    """
    (extension.gelu_tanh if _is_tanh(approximate) else extension.gelu)(out, x)


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Write ``x / (1 + exp(-1.702 x))`` to ``out``. Both are [tokens, d] of one dtype. ``out`` may be ``x``.

    Before the result is rounded to that dtype, its relative error is at most 6e-7 + 2.1e-7 |x|.
    """
    extension.quick_gelu(out, x)


def relu(out: Tensor, x: Tensor) -> None:
    """Write ``max(x, 0)`` to ``out``. A NaN stays a NaN.

    Both are [tokens, d] of one dtype. ``out`` may be ``x``.
    """
    extension.relu(out, x)


def convert(out: Tensor, x: Tensor) -> None:
    """Write ``x`` to ``out`` in the dtype of ``out``, rounded to nearest, ties to even.

    NaN and infinities stay what they are. Both are [tokens, d] of float32, float16 or bfloat16. They must not
    overlap. Raises ValueError that names the wrong argument.
    """
    extension.convert(out, x)
