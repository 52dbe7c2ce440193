"""Small integers packed into words of 32 bits, the first in the lowest bits."""

from __future__ import annotations

import torch
from torch import Tensor


def unpack(packed: Tensor, bits: int) -> Tensor:
    """int32 ``[..., W]`` to uint8 ``[..., W * 32 // bits]``, for 4 and 8 bits."""
    # flat: of a matrix of one column, "contiguous" leaves strides that no view of bytes takes
    octets = packed.flatten().view(torch.uint8).view(*packed.shape[:-1], 4 * packed.shape[-1])
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def unpack_signed(packed: Tensor, bits: int) -> Tensor:
    """The same as int8, stored with half the range added."""
    return centered(unpack(packed, bits), bits)


def centered(values: Tensor, bits: int) -> Tensor:
    """uint8 from 0 on as int8 around zero."""
    return (values ^ 128).view(torch.int8) if bits == 8 else values.view(torch.int8) - 8


def pack_signed(values: Tensor, bits: int) -> Tensor:
    """int8 ``[N, K]`` to int32 ``[N, ceil(K * bits / 32)]``, with half the range added."""
    per_word = 32 // bits
    octets = (values.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    octets = torch.nn.functional.pad(octets, (0, -octets.shape[-1] % per_word))
    if bits == 4:
        octets = octets[..., 0::2] | (octets[..., 1::2] << 4)
    return octets.contiguous().view(torch.int32)
