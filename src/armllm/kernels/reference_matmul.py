"""The quantized products in plain torch; `armllm.kernels.reference` has them beside the other ops."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

TINY = 2.0**-100


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """The weight as it came: int8 ``q`` [N, K], float32 ``scales`` [N, G] and ``offsets`` [N, G] or None."""

    q: Tensor
    scales: Tensor
    offsets: Tensor | None
    bits: int
    values: str = "integers"  # how they would be stored: no product depends on it
    layout: str = "reference"
    target: str = "reference"

    @property
    def out_features(self) -> int:
        """N."""
        return self.q.shape[0]

    @property
    def in_features(self) -> int:
        """K."""
        return self.q.shape[1]

    @property
    def group_size(self) -> int:
        """Input features that share a scale, 0 for all."""
        return 0 if self.scales.shape[1] == 1 else self.in_features // self.scales.shape[1]

    def dequantize(self) -> Tensor:
        """Return the weight's values, float32 [N, K]."""
        grouped = self.q.float().view(self.out_features, self.scales.shape[1], -1)
        offsets = 0 if self.offsets is None else self.offsets[..., None]
        return (self.scales[..., None] * grouped + offsets).view(self.q.shape)


def check_packed(weight: PackedWeight) -> None:
    """Raise ValueError where scales are not those of the rows; nothing else can be wrong without a layout."""
    if len(weight.scales) != len(weight.q):
        raise ValueError(f"weight has scales of {len(weight.scales)} rows, not of {len(weight.q)}")


def pack_weight(
    q: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    *,
    bits: int,
    values: str = "integers",
    target: str | None = None,
    offsets: Tensor | None = None,
) -> PackedWeight:
    """Keep what is given, zero points as offsets; ``target`` must be None."""
    if target is not None:
        raise ValueError(f"target is {target!r}, and plain torch packs for none")
    if zeros is not None:
        offsets = -scales * zeros
    return PackedWeight(q=q, scales=scales, offsets=offsets, bits=bits, values=values)


def quantize_rows(q: Tensor, scales: Tensor, x: Tensor, *, zeros: Tensor | None = None) -> None:
    """Quantize each row of ``x[T, K]`` to int8, symmetric, or asymmetric with ``zeros``."""
    wide = x.float()
    high = wide.clamp(min=0).amax(-1) if x.shape[1] else wide.new_zeros(x.shape[0])
    low = wide.clamp(max=0).amin(-1) if x.shape[1] else high
    known = wide.isfinite().all(-1) & (torch.maximum(high, -low) >= TINY)
    if zeros is None:
        step = torch.maximum(high, -low) / 127
        zero = torch.zeros_like(step)
    else:
        step = (high * 0.5 - low * 0.5) / 127.5
        zero = (-128 - low / step).round().clamp(-128, 127)
        zeros.copy_(zero.where(known, 0))
    rounded = (wide / step[:, None]).round() + zero[:, None]
    q.copy_(rounded.clamp(-128, 127).where(known[:, None], 0))
    scales.copy_(step.where(known, torch.where(wide.isfinite().all(-1), 0.0, torch.nan)))


def matmul_w4a8(
    out: Tensor,
    x: Tensor,
    weight: PackedWeight,
    bias: Tensor | None = None,
    *,
    x_scale: float | None = None,
) -> None:
    """Quantize ``x``, multiply integers exactly, add scaled groups in fp32."""
    q, scales = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0])
    quantize_rows(q, scales, x)
    if x_scale is not None:
        has_scale = scales > 0
        held = (x.float() / x_scale).round().clamp(-127, 127)
        q.copy_(held.where(has_scale[:, None], 0))
        scales.masked_fill_(has_scale, x_scale)
    groups = weight.scales.shape[1]
    values, inputs = weight.q.long().view(weight.out_features, groups, -1), q.long().view(len(x), groups, -1)
    sums = torch.einsum("tgk,ngk->tng", inputs, values) * weight.scales.double()
    if weight.offsets is not None:
        sums += inputs.sum(-1).unsqueeze(1) * weight.offsets.double()
    total = sums.sum(-1) * scales.double()[:, None]
    out.copy_(total if bias is None else total + bias.double())


matmul_w8a8 = matmul_w4a8
