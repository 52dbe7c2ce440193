"""Checks of a quantized checkpoint's data, beyond shapes and dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import LoadingWeights


def checked_scales(weights: LoadingWeights, name: str) -> Tensor:
    """Scales in fp32, all finite."""
    scales = weights.read(name).float()
    if not scales.isfinite().all():
        raise weights.error(name, "has scales that are NaN or infinite")
    return scales


def checked_columns(weights: LoadingWeights, name: str, num_groups: int) -> Tensor | None:
    """The order of inputs in which groups lie side by side, int64 ``[K]``; None where they already do.

    From ``g_idx[K]``, the group of each input (GPTQ's act-order, "desc_act").
    """
    g_idx = weights.read(name).long()
    size = g_idx.numel() // num_groups
    if g_idx.amin() < 0 or g_idx.amax() >= num_groups:
        raise weights.error(name, f"has groups outside of 0 to {num_groups - 1}")
    if not torch.equal(g_idx.bincount(minlength=num_groups), torch.full((num_groups,), size)):
        raise weights.error(name, f"has groups of other sizes than {size}")
    if torch.equal(g_idx, torch.arange(g_idx.numel()) // size):
        return None
    return g_idx.argsort(stable=True)


def checked_order(weights: LoadingWeights, name: str) -> Tensor:
    """The order of inputs that is stored as such, int64 ``[K]``: each input once."""
    order = weights.read(name)
    if not torch.equal(order.sort().values, torch.arange(len(order))):
        raise weights.error(name, "does not name each input once")
    return order
