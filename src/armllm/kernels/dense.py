"""Products with floating-point weights, in the order of a checkpoint or in panels."""

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
    """A weight [out_features, in_features] in the order in which a product reads it. `pack_panels` makes it.

    ``data`` is contiguous and has a row for every 16 columns. A row has 1, 2 or 4 input features of one
    column after another, as the kernel of this CPU reads them. The number of input features is padded to a
    multiple of 4 with zeros.
    """

    data: Tensor
    out_features: int
    in_features: int

    @classmethod
    def empty(cls, out_features: int, in_features: int, dtype: torch.dtype) -> PanelWeight:
        """Panels for `put`, which must write all rows: columns that are none are zero."""
        panels, features = -(-out_features // PANEL_COLUMNS), -(-in_features // 4) * 4
        data = torch.empty(panels, features * PANEL_COLUMNS, dtype=dtype)
        extension.touch_panels(data)  # rows may come in parts, and each thread then packs some of every part
        if out_features % PANEL_COLUMNS:
            data[-1].zero_()
        return cls(data=data, out_features=out_features, in_features=in_features)

    def put(self, first: int, rows: Tensor) -> None:
        """Set rows ``first`` and on, from a matrix of any floating-point dtype of up to 32 bits."""
        extension.pack_panels(self.data, rows, first)

    @property
    def nbytes(self) -> int:
        """Size in bytes, with padding."""
        return self.data.nbytes


def pack_panels(weight: Tensor) -> PanelWeight:
    """Copy ``weight`` [out_features, in_features] into panels for `linear`.

    Its dtype is float32, float16 or bfloat16. Raises ValueError that says what is wrong.
    """
    extension.check_matrix("weight", weight, None, None, None, False)
    out_features, in_features = weight.shape
    panels = PanelWeight.empty(out_features, in_features, weight.dtype)
    panels.put(0, weight)
    return panels


def linear(out: Tensor, x: Tensor, weight: Tensor | PanelWeight, bias: Tensor | None = None) -> None:
    """Write ``x @ weight.T + bias`` to ``out``, as `torch.nn.functional.linear` computes it.

    - ``x``: [tokens, in_features].
    - ``weight``: [out_features, in_features] and contiguous, or in panels.
    - ``bias``: [out_features] or None.
    - ``out``: [tokens, out_features]; it must not overlap ``x``.

    All have one dtype: float32, float16 or bfloat16. Sums are float32, with one rounding at the end. A row's
    result does not depend on other rows. Kernels on instructions for bfloat16 may take subnormal numbers for
    zero (Arm ARM, BFMMLA; Intel SDM, TDPBF16PS). Raises ValueError that names the wrong argument.
    """
    if isinstance(weight, PanelWeight):
        extension.panel_linear(out, x, weight.data, bias, weight.out_features, weight.in_features)
    else:
        extension.linear(out, x, weight, bias)
