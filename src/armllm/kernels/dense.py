"""Products with floating-point weights, as they are or in panels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

PANEL_COLUMNS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanelWeight:
    """A weight [out_features, in_features] in the order that a product reads it; made by ``pack_panels``.

    ``data`` is contiguous, a row for every 16 columns: their elements for one input feature after another,
    for bfloat16 for two of them, which alternate. Input features come in fours; what is missing is zero.
    """

    data: Tensor
    out_features: int
    in_features: int

    @property
    def nbytes(self) -> int:
        """Size in memory, padding included."""
        return self.data.nbytes


def pack_panels(weight: Tensor) -> PanelWeight:
    """Copy ``weight`` [out_features, in_features], float32, float16 or bfloat16, into panels for `linear`.

    Raises ValueError naming what doesn't fit.
    """
    extension.check_matrix("weight", weight, None, None, None, False)
    out_features, in_features = weight.shape
    panels, features = -(-out_features // PANEL_COLUMNS), -(-in_features // 4) * 4
    missing = (0, features - in_features, 0, panels * PANEL_COLUMNS - out_features)
    if any(missing):
        weight = torch.nn.functional.pad(weight, missing)
    together = 2 if weight.dtype is torch.bfloat16 else 1
    columns = weight.reshape(panels, PANEL_COLUMNS, features // together, together)
    data = columns.transpose(1, 2).reshape(panels, features * PANEL_COLUMNS)
    return PanelWeight(data=data, out_features=out_features, in_features=in_features)


def linear(out: Tensor, x: Tensor, weight: Tensor | PanelWeight, bias: Tensor | None = None) -> None:
    """Write ``x @ weight.T + bias`` to ``out``, as `torch.nn.functional.linear` gives it.

    ``x`` is [tokens, in_features], ``weight`` [out_features, in_features] and contiguous, or in panels;
    ``bias`` [out_features], ``out`` [tokens, out_features]; one dtype, float32, float16 or bfloat16. Sums
    are float32, with one rounding at the end; a row's result is the same beside any others. ``out`` must not
    overlap ``x``. Kernels on bfloat16's own instructions may take subnormal numbers for zero (Arm ARM,
    BFMMLA; Intel SDM, TDPBF16PS). Raises ValueError naming the argument that doesn't fit.
    """
    if isinstance(weight, PanelWeight):
        extension.panel_linear(out, x, weight.data, bias, weight.out_features, weight.in_features)
    else:
        extension.linear(out, x, weight, bias)
