"""Blocks of llama.cpp's quantized tensors.

Source of layouts: ggml's ggml-common.h (block_q4_0, block_q4_K and so on) and gguf-py/gguf/quants.py. Some
types are integers with a scale (Q4_0, Q5_0, Q8_0, Q3_K, Q6_K), or stand for 16 integers of a table (IQ4_NL,
IQ4_XS, MXFP4). Others have a least weight beside it, which is no whole number of steps: of 4 bits (Q4_1,
Q4_K) they are integers with an offset.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from armllm.checkpoint.matrix import IntegerWeight

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.kernels import Values

# type -> weights and bytes per block
BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "MXFP4": (32, 17),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
SHIFTED = ("Q4_1", "Q4_K")
# What 4 bits stand for: steps that get wider away from zero, and twice the numbers of E2M1.
NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
DOUBLED_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
TABLES: dict[str, Values] = {"IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_nl", "MXFP4": "e2m1"}


def integers(kind: str, blocks: Tensor) -> IntegerWeight:
    """Blocks uint8 ``[N, B, bytes]`` of a type in `INTEGERS` or `SHIFTED`; exact, but offsets are fp32."""
    if kind in SHIFTED:
        scales, least, values = _affine(kind, blocks)
        weight = _weight(values.view(torch.int8) - 8, scales, 4)
        return dataclasses.replace(weight, offsets=(least + 8 * scales).flatten(1))
    if kind not in _READERS:
        raise ValueError(f"{kind} is not integers as the kernels have them")
    weight = _weight(*_READERS[kind](blocks), 4 if kind == "Q4_0" else 8)
    return dataclasses.replace(weight, values=TABLES.get(kind, "integers"))


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """Blocks uint8 ``[N, B, bytes]`` to fp32 ``[N, K]``."""
    if kind in INTEGERS:
        return integers(kind, blocks).dequantize()
    scales, least, values = _affine(kind, blocks)
    grouped = values.float().view(*scales.shape, values.shape[-1] // scales.shape[-1])
    return (scales.unsqueeze(-1) * grouped + least.unsqueeze(-1)).flatten(1)


def _affine(kind: str, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and least weights of groups, and integers from 0 on."""
    if kind == "Q2_K":
        halves = torch.split(blocks[..., 16:80], 32, -1)
        values = torch.cat([_planes(part, (0, 2, 4, 6)) & 3 for part in halves], -1)
        scale, offset = _half(blocks[..., 80:82]), _half(blocks[..., 82:84])
        return scale * (blocks[..., :16] & 15).float(), -offset * (blocks[..., :16] >> 4).float(), values
    scale, offset = _half(blocks[..., :2]), _half(blocks[..., 2:4])
    if kind == "Q4_1":
        return scale, offset, _nibbles(blocks[..., 4:])
    if kind == "Q5_1":
        return scale, offset, _nibbles(blocks[..., 8:]) | (_bits(blocks[..., 4:8]) << 4)
    scales, minima = _scales_and_minima(blocks[..., 4:16])
    values = torch.cat([_nibbles(part) for part in torch.split(blocks[..., -128:], 32, -1)], -1)
    if kind == "Q5_K":
        values |= (_planes(blocks[..., 16:48], tuple(range(8))) & 1) << 4
    return scale * scales.float(), -offset * minima.float(), values


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return _nibbles(blocks[..., 2:]).view(torch.int8) - 8, _half(blocks[..., :2])


def _q5_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    values = _nibbles(blocks[..., 6:]) | (_bits(blocks[..., 2:6]) << 4)
    return values.view(torch.int8) - 16, _half(blocks[..., :2])


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return blocks[..., 2:].contiguous().view(torch.int8), _half(blocks[..., :2])


def _q3_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    low = torch.cat([_planes(part, (0, 2, 4, 6)) & 3 for part in torch.split(blocks[..., 32:96], 32, -1)], -1)
    missing = ~_planes(blocks[..., :32], tuple(range(8))) & 1  # where the bit is not set, 4 is taken off
    # sixteen scales of 6 bits: lower halves of eight bytes, their upper halves, and four bytes of pairs
    scales = _nibbles(blocks[..., 96:104]) | ((_planes(blocks[..., 104:108], (0, 2, 4, 6)) & 3) << 4)
    values = low.view(torch.int8) - (missing << 2).view(torch.int8)
    return values, _half(blocks[..., 108:]) * (scales.float() - 32)


def _q6_k(blocks: Tensor) -> tuple[Tensor, Tensor]:
    low = torch.cat([_nibbles(half) for half in torch.split(blocks[..., :128], 64, -1)], -1)
    quarters = torch.split(blocks[..., 128:192], 32, -1)
    high = torch.cat([_planes(part, (0, 2, 4, 6)) & 3 for part in quarters], -1)
    scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _half(blocks[..., 208:])
    return (low | (high << 4)).view(torch.int8) - 32, scales


def _iq4_nl(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return _looked_up(_nibbles(blocks[..., 2:]), NONLINEAR), _half(blocks[..., :2])


def _iq4_xs(blocks: Tensor) -> tuple[Tensor, Tensor]:
    values = torch.cat([_nibbles(part) for part in torch.split(blocks[..., 8:], 16, -1)], -1)
    # eight scales of 6 bits: two upper bits of each in two bytes, four lower ones in four
    upper = torch.cat([_planes(blocks[..., place : place + 1], (0, 2, 4, 6)) & 3 for place in (2, 3)], -1)
    lower = torch.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).flatten(-2)
    scales = _half(blocks[..., :2]) * ((lower | (upper << 4)).float() - 32)
    return _looked_up(values, NONLINEAR), scales


def _mxfp4(blocks: Tensor) -> tuple[Tensor, Tensor]:
    return _looked_up(_nibbles(blocks[..., 1:]), DOUBLED_E2M1), (blocks[..., :1].float() - 128).exp2()


def _looked_up(indices: Tensor, table: tuple[int, ...]) -> Tensor:
    return torch.tensor(table, dtype=torch.int8)[indices.int()]


# integers and scales of `INTEGERS`
_READERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "Q4_0": _q4_0,
    "Q5_0": _q5_0,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "Q3_K": _q3_k,
    "Q6_K": _q6_k,
}
INTEGERS = tuple(_READERS)


def _weight(values: Tensor, scales: Tensor, bits: int) -> IntegerWeight:
    return IntegerWeight(q=values.flatten(1), scales=scales.flatten(1), zeros=None, bits=bits)


def _half(octets: Tensor) -> Tensor:
    """Two bytes per block as a number, ``[N, B, 1]``."""
    return octets.contiguous().view(torch.float16).float()


def _nibbles(octets: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return torch.cat((octets & 15, octets >> 4), -1)


def _planes(octets: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """All bytes shifted down by the first number, then by the next."""
    return torch.cat([octets >> shift for shift in shifts], -1)


def _bits(octets: Tensor) -> Tensor:
    """The bits of four bytes, the lowest first, as a byte each."""
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((octets.unsqueeze(-1) >> shifts) & 1).flatten(-2)


def _scales_and_minima(octets: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits each, from twelve bytes."""
    first, second, upper = torch.split(octets, 4, -1)
    scales = torch.cat((first & 63, (upper & 15) | ((first >> 2) & 48)), -1)
    minima = torch.cat((second & 63, (upper >> 4) | ((second >> 2) & 48)), -1)
    return scales, minima
