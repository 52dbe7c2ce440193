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
    """Write ``silu(x[:, :d]) * x[:, d:]`` to ``out``, silu(g) = g / (1 + exp(-g)).

    Before it is multiplied, silu is off by at most 6e-7 + 2.8e-9 |g| of itself: exp is within 2.5 units in
    the last place and 2.8e-9 times its argument, and 0 or infinite beyond 88.
    ``out`` is [tokens, d], ``x`` is [tokens, 2 d], of one dtype (float32, float16 or bfloat16). Raises
    ValueError naming the argument that doesn't fit; so do the other activations.
    """
    extension.silu_and_mul(out, x)


def gelu_and_mul(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``gelu(x[:, :d]) * x[:, d:]`` to ``out``; shapes as in `silu_and_mul`, gelu as in `gelu`."""
    (extension.gelu_tanh_and_mul if _is_tanh(approximate) else extension.gelu_and_mul)(out, x)


def gelu(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``x * Phi(x)`` to ``out``, Phi the normal distribution's (Hendrycks & Gimpel 2016).

    ``approximate="tanh"`` takes Phi as ``(1 + tanh(y)) / 2``, y = sqrt(2 / pi) (x + 0.044715 x^3). ``out``
    and ``x`` are [tokens, d] of one dtype; ``out`` may be ``x``. Before it is rounded to that dtype the
    result is off by at most 1.6e-6 of itself for x > 0, 1.4e-6 + 3.2e-8 x^2 below; with tanh 6e-7 +
    6.1e-7 |y|.
    """
    (extension.gelu_tanh if _is_tanh(approximate) else extension.gelu)(out, x)


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Write ``x / (1 + exp(-1.702 x))`` to ``out``; both [tokens, d] of one dtype, ``out`` may be ``x``.

    Before it is rounded to that dtype the result is off by at most 6e-7 + 2.1e-7 |x| of itself.
    """
    extension.quick_gelu(out, x)


def relu(out: Tensor, x: Tensor) -> None:
    """Write ``max(x, 0)`` to ``out``, a NaN staying one; both [tokens, d] of one dtype.

    ``out`` may be ``x``.
    """
    extension.relu(out, x)


def convert(out: Tensor, x: Tensor) -> None:
    """Write ``x`` to ``out`` in its dtype, rounded to nearest, ties to even; NaN and infinities are kept.

    Both are [tokens, d] of float32, float16 or bfloat16; they must not overlap. Raises ValueError naming the
    argument that doesn't fit.
    """
    extension.convert(out, x)
