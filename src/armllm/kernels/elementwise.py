"""Norms and rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor


def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0) -> None:
    """Write ``x / sqrt(mean(x^2) + eps) * (weight + weight_offset)`` to ``out`` (Zhang & Sennrich 2019).

    ``out`` and ``x`` are [tokens, hidden], ``weight`` is [hidden]. All have one dtype: float32, float16 or
    bfloat16. The arithmetic is float32, with one rounding at the end. ``out`` may be ``x``. Otherwise they
    must not overlap. ``weight_offset`` is 1 for Gemma. Raises ValueError that names the wrong argument.
    """
    extension.rms_norm(out, x, weight, eps, weight_offset)


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0
) -> None:
    """Add ``x`` to ``residual``, then write the norm of ``residual`` to ``x``, both in place.

    ``x`` and ``residual`` are [tokens, hidden], ``weight`` is [hidden]. All have one dtype. The norm is that
    of the residual after rounding to this dtype. Raises ValueError that names the wrong argument.
    """
    extension.fused_add_rms_norm(x, residual, weight, eps, weight_offset)


def layer_norm(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    residual: Tensor | None = None,
) -> None:
    """Write ``(x - mean) / sqrt(variance + eps) * weight + bias`` to ``out`` (Ba, Kiros & Hinton 2016).

    Each row has a mean and a (biased) variance. ``out`` and ``x`` are [tokens, hidden]. ``weight`` and
    ``bias`` are [hidden]; None means no bias. With ``residual`` [tokens, hidden], ``x`` is added to it
    first, in place. Then ``out`` is the norm of this sum, after its rounding. All have one dtype. ``out`` may
    be ``x``. Raises ValueError that names the wrong argument.
    """
    extension.layer_norm(out, x, weight, bias, eps, residual)


def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, *, interleaved: bool = False
) -> None:
    """Rotate the first ``rotary_dim`` elements of every head by its position, in place (Su et al. 2021).

    - ``positions``: int64 [tokens].
    - ``query``, ``key``: [tokens, query heads, head_dim] and [tokens, key heads, head_dim] of one dtype.
    - ``cos_sin_cache``: float32 [max_position, rotary_dim], first the cosines of the rotary_dim / 2 angles,
      then their sines.
    - ``interleaved``: pairs are (2i, 2i + 1). Otherwise they are (i, i + rotary_dim / 2) as in GPT-NeoX.

    Raises ValueError that names the wrong argument, also if a position is outside the cache.
    """
    extension.rotary_embedding(positions, query, key, cos_sin_cache, interleaved)


def gather_rows(out: Tensor, table: Tensor, rows: Tensor) -> None:
    """Copy the ``rows`` of ``table`` to ``out``: ``out[t] = table[rows[t]]``.

    - ``table``: [num_rows, d] of float32, float16 or bfloat16.
    - ``rows``: int64 [tokens].
    - ``out``: [tokens, d] of the table's dtype; it must not overlap the table.

    Raises ValueError that names the wrong argument, also if there is no such row; then nothing is written.
    """
    extension.gather_rows(out, table, rows)
