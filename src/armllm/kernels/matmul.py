"""Products with weights of 4 and 8 bits, the activations quantised to int8 on the way."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from armllm.kernels._extension import aligned_bytes, extension

if TYPE_CHECKING:
    from torch import Tensor


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
        """All but the data, as the extension takes it."""
        shape = (self.out_features, self.in_features, self.group_size)
        return (self.bits, *shape, int(self.zero_points), self.layout, self.target)


def quantize_rows(q: Tensor, scales: Tensor, x: Tensor, *, zeros: Tensor | None = None) -> None:
    """Quantise each row of ``x`` [tokens, features] (float32, float16 or bfloat16) to int8.

    Symmetric: scale = max|x| / 127 and q = round(x / scale), ties to even. With ``zeros``: low and high are
    the row's smallest and largest number, 0 included, scale = (high - low) / 255, zero =
    round(-128 - low / scale) and q = round(x / scale) + zero, held in -128..127; x is about
    scale * (q - zero). ``q`` is int8 [tokens, features], ``scales`` float32 [tokens], ``zeros`` int32
    [tokens]. A row of numbers below 2^-100 has scale 0 and q 0; one that holds an infinity or a NaN has
    scale NaN. Raises ValueError naming the argument that doesn't fit.
    """
    extension.quantize_rows(q, scales, x, zeros)


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
    if target is None:
        target = weight_target(bits)
    size, group_size, layout = extension.check_quantized(q, scales, zeros, offsets, bits, target)
    if zeros is not None:
        offsets = -scales * zeros
    if offsets is not None:
        offsets = offsets.contiguous()
    data = aligned_bytes(size)
    extension.pack_weight(data, q, scales.contiguous(), offsets, bits, target)
    return PackedWeight(
        data=data,
        out_features=q.shape[0],
        in_features=q.shape[1],
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
    extension.matmul_w4a8(out, x, weight.data, weight.description, bias, x_scale)


def matmul_w8a8(
    out: Tensor,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    x_scale: float | None = None,
) -> None:
    """Write ``x @ w.T + bias`` to ``out``, ``w`` a packed weight of 8 bits; otherwise as ``matmul_w4a8``."""
    extension.matmul_w8a8(out, x, weight.data, weight.description, bias, x_scale)
