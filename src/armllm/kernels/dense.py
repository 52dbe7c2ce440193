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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fp8Weight:
    """A weight [out_features, in_features] of E4M3 numbers times scales. `pack_fp8` makes it.

    ``data`` has the bytes in the order of a `PanelWeight` for inputs of ``dtype``. ``scales`` are fp32
    [out_features, groups]; ``group_size`` inputs share one, 0: all.
    """

    data: Tensor
    scales: Tensor
    group_size: int
    out_features: int
    in_features: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes, with padding."""
        return self.data.nbytes + self.scales.nbytes


FP8_LARGEST_SCALE = 127.0


def pack_fp8(weight: Tensor, scales: Tensor, *, group_size: int = 0, dtype: torch.dtype) -> Fp8Weight:
    """Copy a weight of E4M3 for `linear` with inputs of ``dtype``.

    - ``weight``: float8_e4m3fn [out_features, in_features], without NaN.
    - ``scales``: float32 [out_features, groups], up to 127.
    - ``group_size``: how many inputs share one, a multiple of 4; the last group may have fewer. 0: a row has
      one scale.

    Raises ValueError that says what is wrong.
    """
    if weight.dtype is not torch.float8_e4m3fn:
        raise ValueError(f"weight has dtype {weight.dtype}, expected torch.float8_e4m3fn")
    if group_size < 0 or group_size % 4:
        raise ValueError(f"group_size is {group_size}, expected a multiple of 4")
    stored = weight.view(torch.uint8)
    out_features, in_features = weight.shape
    groups = -(-in_features // group_size) if group_size else 1
    extension.check_matrix("scales", scales, "torch.float32", out_features, groups, False)
    if not scales.abs().le(FP8_LARGEST_SCALE).all():
        raise ValueError(f"scales has values beyond {FP8_LARGEST_SCALE:g}, or no numbers")
    if (stored & 127).eq(127).any():
        raise ValueError("weight has values that are NaN")
    panels, features = -(-out_features // PANEL_COLUMNS), -(-in_features // 4) * 4
    data = torch.empty(panels, features * PANEL_COLUMNS, dtype=torch.uint8)
    if out_features % PANEL_COLUMNS:
        data[-1].zero_()
    extension.pack_fp8(data, stored, 0, str(dtype))
    return Fp8Weight(
        data=data,
        scales=scales.contiguous(),
        group_size=group_size,
        out_features=out_features,
        in_features=in_features,
        dtype=dtype,
    )


def linear(
    out: Tensor, x: Tensor, weight: Tensor | PanelWeight | Fp8Weight, bias: Tensor | None = None
) -> None:
    """Write ``x @ weight.T + bias`` to ``out``, as `torch.nn.functional.linear` computes it.

    - ``x``: [tokens, in_features].
    - ``weight``: [out_features, in_features] and contiguous, or in panels, or of E4M3. Then each number is
      multiplied by its scale and rounded to the dtype.
    - ``bias``: [out_features] or None.
    - ``out``: [tokens, out_features]; it must not overlap ``x``.

    All have one dtype: float32, float16 or bfloat16. Sums are float32, with one rounding at the end. A row's
    result does not depend on other rows. Kernels on instructions for bfloat16 may take subnormal numbers for
    zero (Arm ARM, BFMMLA; Intel SDM, TDPBF16PS). Raises ValueError that names the wrong argument.
    """
    if isinstance(weight, PanelWeight):
        extension.panel_linear(out, x, weight.data, bias, weight.out_features, weight.in_features)
    elif isinstance(weight, Fp8Weight):
        if x.dtype is not weight.dtype:
            raise ValueError(f"x has dtype {x.dtype}, expected {weight.dtype}, for which weight is packed")
        extension.fp8_linear(
            out,
            x,
            weight.data,
            weight.scales,
            bias,
            weight.out_features,
            weight.in_features,
            weight.group_size,
        )
    else:
        extension.linear(out, x, weight, bias)


def head_linear(out: Tensor, x: Tensor, weight: PanelWeight) -> None:
    """Write ``x[:, h] @ weight[h].T`` to ``out[:, h]`` for each head h.

    - ``x``: [tokens, heads, in_features].
    - ``weight``: [heads * out_features, in_features] in panels, one head's rows after another's;
      out_features is a multiple of 16.
    - ``out``: [tokens, heads, out_features]; it must not overlap ``x``.

    Dtypes and sums are those of `linear`. Raises ValueError that names the wrong argument.
    """
    extension.head_linear(out, x, weight.data, weight.out_features, weight.in_features)
