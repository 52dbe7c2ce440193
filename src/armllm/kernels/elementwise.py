"""Norms and rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0) -> None:
    """Write ``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` to ``out`` (Zhang & Sennrich 2019).

    ``out`` and ``x`` are [tokens, hidden], ``weight`` is [hidden], all of one dtype: float32, float16 or
    bfloat16; the arithmetic is float32, with one rounding at the end. ``out`` may be ``x``; they must not
    overlap otherwise. ``weight_offset`` is 1 for Gemma. Raises ValueError naming the argument that doesn't
    fit.
    """
    extension.rms_norm(out, x, weight, eps, weight_offset)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0
) -> None:
    """Add ``x`` to ``residual``, then write the norm of ``residual`` to ``x``; both in place.

    ``x`` and ``residual`` are [tokens, hidden], ``weight`` is [hidden], all of one dtype. The norm is that
    of the residual as stored. Raises ValueError naming the argument that doesn't fit.
    """
    extension.fused_add_rms_norm(x, residual, weight, eps, weight_offset)


def layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
    """Write ``(x - mean) / sqrt(variance + eps) * weight + bias`` to ``out`` (Ba, Kiros & Hinton 2016).

    Mean and (biased) variance are those of each row. ``out`` and ``x`` are [tokens, hidden], ``weight`` and
    ``bias`` [hidden] (None: no bias), all of one dtype. ``out`` may be ``x``. Raises ValueError naming the
    argument that doesn't fit.
    """
    extension.layer_norm(out, x, weight, bias, eps)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, *, interleaved: bool = False
) -> None:
    """Rotate the first ``rotary_dim`` elements of every head by its token's position (Su et al. 2021).

    In place. ``positions`` is int64 [tokens]; ``query`` [tokens, query heads, head_dim] and ``key``
    [tokens, key heads, head_dim] share a dtype; ``cos_sin_cache`` is float32 [max_position, rotary_dim],
    the cosines of the rotary_dim / 2 angles and then their sines. Pairs are (i, i + rotary_dim / 2) as in
    GPT-NeoX, or (2i, 2i + 1) when ``interleaved``. Raises ValueError naming the argument that doesn't fit,
    a position outside the cache too.
    """
    extension.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)
