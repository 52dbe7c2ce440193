"""Activations, plain and gated, and conversions between storage types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from armllm.kernels import _check
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm._kernels import Storage

    Function = Callable[[Storage, int, int, int, int, int, int], None]

Approximate = Literal["none", "tanh"]
Variant = TypeVar("Variant")


def _gated(function: Function, out: Tensor, x: Tensor) -> None:
    kind = _check.storage("x", x.dtype)
    rows, columns = _check.matrix("x", x, "2 d")
    if columns % 2 != 0:
        raise ValueError(f"x has {columns} columns, expected an even number: gate and up side by side")
    _check.tensor("out", out, x.dtype, (rows, columns // 2))
    _check.output("out", out)
    function(kind, out.data_ptr(), x.data_ptr(), rows, columns // 2, out.stride()[0], x.stride()[0])


def _strided(function: Function, out: Tensor, x: Tensor) -> None:
    kind = _check.storage("x", x.dtype)
    rows, columns = shape = _check.matrix("x", x, "d")
    _check.tensor("out", out, x.dtype, shape)
    _check.output("out", out)
    function(kind, out.data_ptr(), x.data_ptr(), rows, columns, out.stride()[0], x.stride()[0])


def _gelu_variant(approximate: str, exact: Variant, tanh: Variant) -> Variant:
    if approximate == "none":
        return exact
    if approximate == "tanh":
        return tanh
    raise ValueError(f"approximate is {approximate!r}, expected 'none' or 'tanh'")


def silu_and_mul(out: Tensor, x: Tensor) -> None:
    """Write ``silu(x[:, :d]) * x[:, d:]`` to ``out``, silu(g) = g / (1 + exp(-g)).

    Before it is multiplied, silu is off by at most 6e-7 + 2.8e-9 |g| of itself: exp is within 2.5 units in
    the last place and 2.8e-9 times its argument, and 0 or infinite beyond 88.
    ``out`` is [tokens, d], ``x`` is [tokens, 2 d], of one dtype (float32, float16 or bfloat16). Raises
    ValueError naming the argument that doesn't fit; so do the other activations.
    """
    if not extension.plain_silu_and_mul(out, x):
        _gated(extension.silu_and_mul, out, x)


def gelu_and_mul(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``gelu(x[:, :d]) * x[:, d:]`` to ``out``; shapes as in `silu_and_mul`, gelu as in `gelu`."""
    plain = _gelu_variant(approximate, extension.plain_gelu_and_mul, extension.plain_gelu_tanh_and_mul)
    if not plain(out, x):
        _gated(_gelu_variant(approximate, extension.gelu_and_mul, extension.gelu_tanh_and_mul), out, x)


def gelu(out: Tensor, x: Tensor, approximate: Approximate = "none") -> None:
    """Write ``x * Phi(x)`` to ``out``, Phi the normal distribution's (Hendrycks & Gimpel 2016).

    ``approximate="tanh"`` takes Phi as ``(1 + tanh(y)) / 2``, y = sqrt(2 / pi) (x + 0.044715 x^3). ``out``
    and ``x`` are [tokens, d] of one dtype; ``out`` may be ``x``. Before it is rounded to that dtype the
    result is off by at most 1.6e-6 of itself for x > 0, 1.4e-6 + 3.2e-8 x^2 below; with tanh 6e-7 +
    6.1e-7 |y|.
    """
    plain = _gelu_variant(approximate, extension.plain_gelu, extension.plain_gelu_tanh)
    if not plain(out, x):
        _strided(_gelu_variant(approximate, extension.gelu, extension.gelu_tanh), out, x)


def quick_gelu(out: Tensor, x: Tensor) -> None:
    """Write ``x / (1 + exp(-1.702 x))`` to ``out``; both [tokens, d] of one dtype, ``out`` may be ``x``.

    Before it is rounded to that dtype the result is off by at most 6e-7 + 2.1e-7 |x| of itself.
    """
    if not extension.plain_quick_gelu(out, x):
        _strided(extension.quick_gelu, out, x)


def relu(out: Tensor, x: Tensor) -> None:
    """Write ``max(x, 0)`` to ``out``, a NaN staying one; both [tokens, d] of one dtype.

    ``out`` may be ``x``.
    """
    if not extension.plain_relu(out, x):
        _strided(extension.relu, out, x)


def convert(out: Tensor, x: Tensor) -> None:
    """Write ``x`` to ``out`` in its dtype, rounded to nearest, ties to even; NaN and infinities are kept.

    Both are [tokens, d] of float32, float16 or bfloat16; they must not overlap. Raises ValueError naming the
    argument that doesn't fit.
    """
    if extension.plain_convert(out, x):
        return
    from_kind = _check.storage("x", x.dtype)
    to_kind = _check.storage("out", out.dtype)
    rows, columns = shape = _check.matrix("x", x, "d")
    _check.tensor("out", out, out.dtype, shape)
    _check.output("out", out)
    if to_kind == from_kind:
        out.copy_(x)
        return
    extension.convert(
        to_kind, from_kind, out.data_ptr(), x.data_ptr(), rows, columns, out.stride()[0], x.stride()[0]
    )
