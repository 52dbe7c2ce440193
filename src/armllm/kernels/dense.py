"""Products with floating-point weights, as they are or in panels."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.kernels import _check
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

PANEL_COLUMNS = 16
_DENSE, _PANELS = 0, -1  # csrc/include/armllm/ops.h


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


def _panel_shape(out_features: int, in_features: int) -> tuple[int, int]:
    return -(-out_features // PANEL_COLUMNS), -(-in_features // 4) * 4 * PANEL_COLUMNS


def pack_panels(weight: Tensor) -> PanelWeight:
    """Copy ``weight`` [out_features, in_features], float32, float16 or bfloat16, into panels for `linear`.

    Raises ValueError naming what doesn't fit.
    """
    _check.storage("weight", weight.dtype)
    _check.tensor("weight", weight, weight.dtype, ("out_features", "in_features"))
    out_features, in_features = weight.shape
    panels, size = shape = _panel_shape(out_features, in_features)
    features = size // PANEL_COLUMNS
    missing = (0, features - in_features, 0, panels * PANEL_COLUMNS - out_features)
    if any(missing):
        weight = torch.nn.functional.pad(weight, missing)
    together = 2 if weight.dtype is torch.bfloat16 else 1
    columns = weight.reshape(panels, PANEL_COLUMNS, features // together, together)
    data = columns.transpose(1, 2).reshape(shape)
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
        if extension.plain_panel_linear(out, x, weight.data, bias, weight.out_features, weight.in_features):
            return
    elif extension.plain_linear(out, x, weight, bias):
        return
    kind = _check.storage("x", x.dtype)
    rows, in_features = _check.matrix("x", x, "in_features")
    if isinstance(weight, PanelWeight):
        form, data, out_features = _PANELS, weight.data, weight.out_features
        if in_features != weight.in_features:
            raise ValueError(f"x has {in_features} features, weight {weight.in_features}")
        _check.tensor("weight.data", data, x.dtype, _panel_shape(out_features, in_features))
    else:
        form, data = _DENSE, weight
        if weight.ndim != 2:
            _check.tensor("weight", weight, x.dtype, ("out_features", in_features))
        out_features = weight.shape[0]
        _check.tensor("weight", weight, x.dtype, (out_features, in_features))
    if not data.is_contiguous():
        raise ValueError(f"weight must be contiguous, its strides are {list(data.stride())}")
    _check.tensor("out", out, x.dtype, (rows, out_features))
    _check.output("out", out)
    if bias is not None:
        _check.tensor("bias", bias, x.dtype, (out_features,))
    extension.matmul(
        form,
        kind,
        out.data_ptr(),
        x.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        data.data_ptr(),
        rows,
        out_features,
        in_features,
        0,
        False,
        out.stride(0),
        x.stride(0),
        0.0,
    )
