"""Products with weights of 4 and 8 bits. They quantize the activations to int8."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal

import torch

from armllm.kernels._extension import aligned_bytes, extension

if TYPE_CHECKING:
    from torch import Tensor

Values = Literal["integers", "e2m1", "iq4_nl"]
"""Integers as they are; twice the values of E2M1 (OCP Microscaling Formats 1.0); ggml's kvalues_iq4nl."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A weight in the order that the matmul kernel of this CPU needs. `pack_weight` makes it.

    w[n, k] = scale[n, k // group_size] * (q[n, k] - zero[n, k // group_size]). ``data`` is uint8, aligned to
    64 bytes. ``layout`` names its order, which ``target`` defines. ``group_size`` 0 means one group per
    channel. ``zero_points`` is True if there are zero points or offsets. ``scales`` is the dtype that holds
    all scales exactly, as text: of groups, "torch.bfloat16" or "torch.float16" where one of them does.
    ``values`` other than "integers" take 4 bits of memory, and ``bits`` is 8.
    """

    data: Tensor
    out_features: int
    in_features: int
    bits: int
    group_size: int
    zero_points: bool
    scales: str
    values: Values
    layout: str
    target: str

    @property
    def nbytes(self) -> int:
        """Size in bytes, with scales and padding."""
        return self.data.numel()

    def rows(self, which: Tensor) -> PackedWeight:
        """A copy of some rows: int64 ``[rows]`` indices, which rise.

        A panel of this machine's layout holds several rows. Raises ValueError where a part of one is wanted.
        """
        together = extension.weight_layout(self.bits)[2]
        firsts, count = which[::together], len(which)
        whole = (firsts.unsqueeze(1) + torch.arange(together)).flatten()
        at_end = count % together == 0 or int(which[-1]) == self.out_features - 1
        if bool((firsts % together).any()) or not torch.equal(whole[:count], which) or not at_end:
            raise ValueError(f"the rows lie in panels of {together}, which can't be divided")
        panels = self.data.view(-(-self.out_features // together), -1)
        data = aligned_bytes(len(firsts) * panels.shape[1])
        torch.index_select(panels, 0, firsts // together, out=data.view(len(firsts), -1))
        return dataclasses.replace(self, data=data, out_features=count)

    @functools.cached_property
    def description(self) -> tuple[int | str, ...]:
        """All fields except the data, as the extension takes them."""
        shape = (self.out_features, self.in_features, self.group_size)
        return (self.bits, *shape, int(self.zero_points), self.scales, self.values, self.layout, self.target)


def quantize_rows(q: Tensor, scales: Tensor, x: Tensor, *, zeros: Tensor | None = None) -> None:
    """Quantize each row of ``x`` [tokens, features] (float32, float16 or bfloat16) to int8.

    Without ``zeros`` it is symmetric: scale = max|x| / 127 and q = round(x / scale), ties to even.

    With ``zeros``, low and high are the smallest and the largest number of the row, 0 included. Then scale =
    (high - low) / 255, zero = round(-128 - low / scale) and q = round(x / scale) + zero, clamped to
    -128..127. So x is about scale * (q - zero).

    - ``q``: int8 [tokens, features].
    - ``scales``: float32 [tokens].
    - ``zeros``: int32 [tokens].

    A row of numbers below 2^-100 gets scale 0 and q 0. A row with an infinity or a NaN gets scale NaN. Raises
    ValueError that names the wrong argument.
    """
    extension.quantize_rows(q, scales, x, zeros)


def weight_layouts() -> dict[str, str]:
    """Return the layout of packed weights for each kernel target, also for those of other machines."""
    return extension.weight_layouts()


def weight_target(bits: int) -> str:
    """Return the kernel target that computes products with weights of ``bits`` bits in this process."""
    return extension.weight_layout(bits)[1]


def check_packed(weight: PackedWeight) -> None:
    """Raise ValueError or TypeError that names what the kernels of this process can't read of a weight.

    Products check the same; this is for weights of strangers, before any product.
    """
    extension.check_packed("weight", weight.data, weight.description)


def pack_weight(
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    *,
    bits: int,
    values: Values = "integers",
    target: str | None = None,
    offsets: Tensor | None = None,
) -> PackedWeight:
    """Put a quantized weight into the order that `matmul_w4a8` or `matmul_w8a8` reads.

    - ``q``: int8 [out_features, in_features]. With ``bits`` 4 the values are -8..7. If a format stores 0..15,
      subtract 8 from its values and its zero points.
    - ``scales``: float32 [out_features, groups]: one group, or groups of 32, 64 or 128 input features.
      Those of groups are stored in 16 bits if that is exact for all of them.
    - ``zeros``: int8 in the shape of ``scales``, the zero points; -8..8 for 4 bits. None is symmetric.
    - ``offsets``: float32 in the shape of ``scales``, instead of ``zeros``. They are added to scale * q, so
      zero points need not be whole numbers.
    - ``values``: "e2m1" or "iq4_nl" where ``q`` holds only the 16 integers of this table, and ``bits`` is 8.
      Each is stored as its number in the table, in 4 bits; products are the same. There are no zero points.
    - ``target``: the kernel target to pack for, also of another machine. None means the one in use.

    Raises ValueError that names the wrong argument.
    """
    if target is None:
        target = weight_target(bits)
    size, group_size, scale_dtype, layout = extension.check_quantized(
        q, scales, zeros, offsets, bits, values, target
    )
    if zeros is not None:
        offsets = -scales * zeros
    if offsets is not None:
        offsets = offsets.contiguous()
    data = aligned_bytes(size)
    extension.pack_weight(data, q, scales.contiguous(), offsets, bits, values, target)
    return PackedWeight(
        data=data,
        out_features=q.shape[0],
        in_features=q.shape[1],
        bits=bits,
        group_size=group_size,
        zero_points=offsets is not None,
        scales=scale_dtype,
        values=values,
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
    """Write ``x @ w.T + bias`` to ``out``, where ``w`` is a packed weight of 4 bits.

    - ``x``: [tokens, in_features].
    - ``out``: [tokens, out_features]; it must not overlap ``x``.
    - ``bias``: [out_features] or None.
    - ``x_scale``: the scale of all rows. Then a row becomes round(x / x_scale), clamped to -127..127. Without
      it, each row is quantized as by `quantize_rows` (symmetric).

    ``x``, ``out`` and ``bias`` have one dtype: float32, float16 or bfloat16. The sum of products over a group
    is exact in int32. Groups, scales and bias are added in float32, with one rounding at the end. A row with
    an infinity or a NaN gives NaN. Raises ValueError that names the wrong argument, also for a weight with
    another layout.
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
    """Write ``x @ w.T + bias`` to ``out``, where ``w`` is a packed weight of 8 bits.

    The rest is as in `matmul_w4a8`.
    """
    extension.matmul_w8a8(out, x, weight.data, weight.description, bias, x_scale)
