"""Norms and rotary embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.kernels import _check
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
    if extension.plain_rms_norm(out, x, weight, eps, weight_offset):
        return
    kind = _check.storage("x", x.dtype)
    rows, hidden = shape = _check.matrix("x", x, "hidden")
    _check.tensor("out", out, x.dtype, shape)
    _check.tensor("weight", weight, x.dtype, (hidden,))
    _check.output("out", out)
    extension.rms_norm(
        kind,
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        rows,
        hidden,
        out.stride()[0],
        x.stride()[0],
        eps,
        weight_offset,
    )


def fused_add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, weight_offset: float = 0.0
) -> None:
    """Add ``x`` to ``residual``, then write the norm of ``residual`` to ``x``; both in place.

    ``x`` and ``residual`` are [tokens, hidden], ``weight`` is [hidden], all of one dtype. The norm is that
    of the residual as stored. Raises ValueError naming the argument that doesn't fit.
    """
    if extension.plain_fused_add_rms_norm(x, residual, weight, eps, weight_offset):
        return
    kind = _check.storage("x", x.dtype)
    rows, hidden = shape = _check.matrix("x", x, "hidden")
    _check.tensor("residual", residual, x.dtype, shape)
    _check.tensor("weight", weight, x.dtype, (hidden,))
    _check.output("x", x)
    _check.output("residual", residual)
    extension.fused_add_rms_norm(
        kind,
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        rows,
        hidden,
        x.stride()[0],
        residual.stride()[0],
        eps,
        weight_offset,
    )


def layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> None:
    """Write ``(x - mean) / sqrt(variance + eps) * weight + bias`` to ``out`` (Ba, Kiros & Hinton 2016).

    Mean and (biased) variance are those of each row. ``out`` and ``x`` are [tokens, hidden], ``weight`` and
    ``bias`` [hidden] (None: no bias), all of one dtype. ``out`` may be ``x``. Raises ValueError naming the
    argument that doesn't fit.
    """
    if extension.plain_layer_norm(out, x, weight, bias, eps):
        return
    kind = _check.storage("x", x.dtype)
    rows, hidden = shape = _check.matrix("x", x, "hidden")
    _check.tensor("out", out, x.dtype, shape)
    _check.tensor("weight", weight, x.dtype, (hidden,))
    if bias is not None:
        _check.tensor("bias", bias, x.dtype, (hidden,))
    _check.output("out", out)
    extension.layer_norm(
        kind,
        out.data_ptr(),
        x.data_ptr(),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        rows,
        hidden,
        out.stride()[0],
        x.stride()[0],
        eps,
    )


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
    if extension.plain_rotary_embedding(positions, query, key, cos_sin_cache, interleaved):
        return
    kind = _check.storage("query", query.dtype)
    _check.tensor("query", query, query.dtype, ("tokens", "query heads", "head_dim"))
    tokens, query_heads, head_dim = query.shape
    _check.tensor("key", key, query.dtype, (tokens, "key heads", head_dim))
    _check.tensor("positions", positions, torch.int64, (tokens,))
    _check.tensor("cos_sin_cache", cos_sin_cache, torch.float32, ("max_position", "rotary_dim"))
    max_position, rotary_dim = cos_sin_cache.shape
    if rotary_dim % 2 != 0 or rotary_dim > head_dim:
        raise ValueError(
            f"cos_sin_cache has rotary_dim {rotary_dim}, expected an even number up to {head_dim}"
        )
    _check.output("query", query)
    _check.output("key", key)
    extension.rotary_embedding(
        kind,
        positions.data_ptr(),
        query.data_ptr(),
        key.data_ptr(),
        cos_sin_cache.data_ptr(),
        tokens,
        query_heads,
        key.shape[1],
        head_dim,
        rotary_dim,
        query.stride(0),
        query.stride(1),
        key.stride(0),
        key.stride(1),
        cos_sin_cache.stride(0),
        max_position,
        interleaved,
    )
