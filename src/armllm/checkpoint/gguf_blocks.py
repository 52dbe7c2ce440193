"""Blocks of llama.cpp's quantised tensors.

Source of layouts: ggml's ggml-common.h (block_q4_0, block_q4_K and so on) and gguf-py/gguf/quants.py. Some
types are integers with a scale (Q4_0, Q5_0, Q8_0, Q6_K); others have a least weight beside it, which is no
whole number of steps: of 4 bits (Q4_1, Q4_K) they are integers with an offset.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from armllm.checkpoint.matrix import IntegerWeight

# type -> weights and bytes per block
BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
INTEGERS = ("Q4_0", "Q5_0", "Q8_0", "Q6_K")
SHIFTED = ("Q4_1", "Q4_K")


def integers(kind: str, blocks: Tensor) -> IntegerWeight:
    """Blocks uint8 ``[N, B, bytes]`` of a type in `INTEGERS` or `SHIFTED`; exact, but offsets are fp32."""
    if kind in SHIFTED:
        scales, least, values = _affine(kind, blocks)
        weight = _weight(values.view(torch.int8) - 8, scales, 4)
        return dataclasses.replace(weight, offsets=(least + 8 * scales).flatten(1))
    if kind == "Q8_0":
        return _weight(blocks[..., 2:].contiguous().view(torch.int8), _half(blocks[..., :2]), 8)
    if kind == "Q4_0":
        return _weight(_nibbles(blocks[..., 2:]).view(torch.int8) - 8, _half(blocks[..., :2]), 4)
    if kind == "Q5_0":
        values = _nibbles(blocks[..., 6:]) | (_bits(blocks[..., 2:6]) << 4)
        return _weight(values.view(torch.int8) - 16, _half(blocks[..., :2]), 8)
    if kind == "Q6_K":
        low = torch.cat([_nibbles(half) for half in torch.split(blocks[..., :128], 64, -1)], -1)
        quarters = torch.split(blocks[..., 128:192], 32, -1)
        high = torch.cat([_planes(part, (0, 2, 4, 6)) & 3 for part in quarters], -1)
        scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _half(blocks[..., 208:])
        return _weight((low | (high << 4)).view(torch.int8) - 32, scales, 8)
    raise ValueError(f"{kind} is not integers as the kernels have them")


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """Blocks uint8 ``[N, B, bytes]`` to fp32 ``[N, K]``."""
    if kind in INTEGERS:
        return integers(kind, blocks).dequantize()
    scales, least, values = _affine(kind, blocks)
    grouped = values.float().view(*scales.shape, 32)
    return (scales.unsqueeze(-1) * grouped + least.unsqueeze(-1)).flatten(1)


def _affine(kind: str, blocks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and least weights of groups of 32, and integers from 0 on."""
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
