"""Products with weights of 4 and 8 bits, the activations quantised to int8 on the way."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import torch

from armllm.kernels import _check
from armllm.kernels._extension import extension

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64  # bytes: a cache line
GROUP_SIZES = (32, 64, 128)
NIBBLE = (-8, 7)
ZERO_OF_NIBBLE = (-8, 8)
"""GPTQ's first format stores zero points less one, which gives 16 of 0 to 15."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A weight as the matmul kernel of this CPU wants it; made by ``pack_weight``.

    w[n, k] = scale[n, k // group_size] * (q[n, k] - zero[n, k // group_size]). ``data`` is uint8, aligned to
    64 bytes; its order is ``layout``, which ``target`` chose. ``group_size`` 0 is one group per channel.
    ``zero_points``: there are some, or offsets.
    """

    data: Tensor
    out_features: int
    in_features: int
    bits: int
    group_size: int
    zero_points: bool
    layout: str
    target: str

    @property
    def nbytes(self) -> int:
        """Size in memory, scales and padding included."""
        return self.data.numel()

    @functools.cached_property
    def description(self) -> tuple[int | str, ...]:
        """All but the data, for calls with plain tensors: numbers, then the layout."""
        shape = (self.out_features, self.in_features, self.group_size)
        return (self.bits, *shape, int(self.zero_points), self.layout)


def quantize_rows(q: Tensor, scales: Tensor, x: Tensor, *, zeros: Tensor | None = None) -> None:
    """Quantise each row of ``x`` [tokens, features] (float32, float16 or bfloat16) to int8.

    Symmetric: scale = max|x| / 127 and q = round(x / scale), ties to even. With ``zeros``: low and high are
    the row's smallest and largest number, 0 included, scale = (high - low) / 255, zero =
    round(-128 - low / scale) and q = round(x / scale) + zero, held in -128..127; x is about
    scale * (q - zero). ``q`` is int8 [tokens, features], ``scales`` float32 [tokens], ``zeros`` int32
    [tokens]. A row of numbers below 2^-100 has scale 0 and q 0; one that holds an infinity or a NaN has
    scale NaN. Raises ValueError naming the argument that doesn't fit.
    """
    kind = _check.storage("x", x.dtype)
    _check.tensor("x", x, x.dtype, ("tokens", "features"))
    rows, width = x.shape
    _check.tensor("q", q, torch.int8, (rows, width))
    _check.tensor("scales", scales, torch.float32, (rows,))
    if zeros is not None:
        _check.tensor("zeros", zeros, torch.int32, (rows,))
    _check.output("q", q)
    extension.quantize_rows(
        kind,
        q.data_ptr(),
        scales.data_ptr(),
        0 if zeros is None else zeros.data_ptr(),
        x.data_ptr(),
        rows,
        width,
        q.stride(0),
        x.stride(0),
    )


def _group_size(features: int, groups: int) -> int:
    """Return the size of a group, 0 for one group of all features."""
    if groups == 1:
        return 0
    if groups == 0 or features % groups != 0 or features // groups not in GROUP_SIZES:
        raise ValueError(
            f"scales has {groups} groups for {features} input features, expected 1, or groups of "
            f"{', '.join(map(str, GROUP_SIZES))}"
        )
    return features // groups


def _check_range(name: str, value: Tensor, low: int, high: int) -> None:
    if value.numel() == 0:
        return
    least, most = (int(end) for end in torch.aminmax(value))
    if least < low or most > high:
        raise ValueError(f"{name} has values from {least} to {most}, expected {low} to {high}")


def _check_finite(name: str, value: Tensor) -> None:
    if not torch.isfinite(value).all():
        row, group = (~torch.isfinite(value)).nonzero()[0].tolist()
        raise ValueError(f"{name}[{row}, {group}] is {value[row, group].item()}, expected a finite number")


def weight_layouts() -> dict[str, str]:
    """The layout of packed weights by kernel target, those of other machines included."""
    return extension.weight_layouts()


def weight_target(bits: int) -> str:
    """The kernel target whose products with weights of this many bits this process uses."""
    return extension.weight_layout(bits)[1]


def pack_weight(
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    *,
    bits: int,
    target: str | None = None,
    offsets: Tensor | None = None,
) -> PackedWeight:
    """Bring a quantised weight into the order that ``matmul_w4a8`` or ``matmul_w8a8`` reads.

    ``q`` is int8 [out_features, in_features], for ``bits`` 4 with values -8..7 (formats that store 0..15
    subtract 8, from their zero points too). ``scales`` is float32 [out_features, groups]: one group, or
    groups of 32, 64 or 128 input features. ``zeros`` (int8, the shape of ``scales``) are zero points, -8..8
    for 4 bits; None is symmetric. ``offsets`` (float32, the shape of ``scales``), in place of ``zeros``, are
    added to scale * q: zero points that need not be whole. ``target``: pack for the kernels of this one,
    whatever this machine is; None: for those in use. Raises ValueError naming the argument that doesn't fit.
    """
    if bits not in {4, 8}:
        raise ValueError(f"bits is {bits}, expected 4 or 8")
    _check.tensor("q", q, torch.int8, ("out_features", "in_features"))
    out_features, in_features = q.shape
    _check.tensor("scales", scales, torch.float32, (out_features, "groups"))
    group_size = _group_size(in_features, scales.shape[1])
    _check_finite("scales", scales)
    if bits == 4:
        _check_range("q", q, *NIBBLE)
    if zeros is not None:
        _check.tensor("zeros", zeros, torch.int8, tuple(scales.shape))
        if bits == 4:
            _check_range("zeros", zeros, *ZERO_OF_NIBBLE)
        if offsets is not None:
            raise ValueError("offsets and zeros are both given, expected one of them")
        offsets = -scales * zeros
    if offsets is not None:
        _check.tensor("offsets", offsets, torch.float32, tuple(scales.shape))
        _check_finite("offsets", offsets)
        offsets = offsets.contiguous()
    scales = scales.contiguous()
    if target is None:
        target = weight_target(bits)
    layout = weight_layouts().get(target)
    if layout is None:
        raise ValueError(f"target is {target!r}, expected one of {', '.join(weight_layouts())}")
    size = extension.packed_bytes(target, bits, out_features, in_features, group_size, offsets is not None)
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    data = memory[start : start + size]
    extension.pack_weight(
        target,
        bits,
        data.data_ptr(),
        q.data_ptr(),
        scales.data_ptr(),
        0 if offsets is None else offsets.data_ptr(),
        out_features,
        in_features,
        group_size,
        q.stride(0),
    )
    return PackedWeight(
        data=data,
        out_features=out_features,
        in_features=in_features,
        bits=bits,
        group_size=group_size,
        zero_points=offsets is not None,
        layout=layout,
        target=target,
    )


def matmul_w4a8(
    out: Tensor,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    x_scale: float | None = None,
) -> None:
    """Write ``x @ w.T + bias`` to ``out``, ``w`` a packed weight of 4 bits.

    ``x`` is [tokens, in_features], ``out`` [tokens, out_features], ``bias`` [out_features]; one dtype,
    float32, float16 or bfloat16. Each row of ``x`` is quantised as by ``quantize_rows`` (symmetric). The sum
    of products over a group is exact in int32; groups, scales and bias are added in float32, with one
    rounding at the end. A row with an infinity or a NaN gives NaN. With ``x_scale`` all rows are quantised by
    it, round(x / x_scale) held in -127..127. ``out`` must not overlap ``x``. Raises ValueError naming the
    argument that doesn't fit, a weight packed for another layout too.
    """
    if not extension.plain_matmul_w4a8(out, x, weight.data, weight.description, bias, x_scale):
        _matmul(4, out, x, weight, bias, x_scale)


def matmul_w8a8(
    out: Tensor,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    x_scale: float | None = None,
) -> None:
    """Write ``x @ w.T + bias`` to ``out``, ``w`` a packed weight of 8 bits; otherwise as ``matmul_w4a8``."""
    if not extension.plain_matmul_w8a8(out, x, weight.data, weight.description, bias, x_scale):
        _matmul(8, out, x, weight, bias, x_scale)


def _matmul(  # noqa: PLR0917 - two ops' arguments
    bits: int, out: Tensor, x: Tensor, weight: PackedWeight, bias: Tensor | None, x_scale: float | None
) -> None:
    if weight.bits != bits:
        raise ValueError(f"weight has {weight.bits} bits; this product takes {bits}")
    kind = _check.storage("x", x.dtype)
    _check.tensor("x", x, x.dtype, ("tokens", weight.in_features))
    rows = x.shape[0]
    _check.tensor("out", out, x.dtype, (rows, weight.out_features))
    _check.output("out", out)
    if bias is not None:
        _check.tensor("bias", bias, x.dtype, (weight.out_features,))
    layout, target = extension.weight_layout(bits)
    if weight.layout != layout:
        raise ValueError(
            f"weight was packed for target {weight.target} (layout {weight.layout}); this process uses "
            f"{target} (layout {layout}): pack it again"
        )
    if x_scale is not None and not 0 < x_scale < math.inf:
        raise ValueError(f"x_scale is {x_scale}, expected a positive number")
    size = extension.packed_bytes(
        target, bits, weight.out_features, weight.in_features, weight.group_size, weight.zero_points
    )
    _check.tensor("weight.data", weight.data, torch.uint8, (size,))
    if weight.data.data_ptr() % ALIGNMENT != 0:
        raise ValueError(f"weight.data must start at a multiple of {ALIGNMENT} bytes")
    extension.matmul(
        bits,
        kind,
        out.data_ptr(),
        x.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        weight.data.data_ptr(),
        rows,
        weight.out_features,
        weight.in_features,
        weight.group_size,
        weight.zero_points,
        out.stride(0),
        x.stride(0),
        0.0 if x_scale is None else x_scale,
    )
