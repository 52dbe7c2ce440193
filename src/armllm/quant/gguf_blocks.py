"""Blocks of llama.cpp's quantised tensors.

Source of layouts: ggml's ggml-common.h (block_q4_0, block_q8_0, block_q4_K, block_q6_K) and
gguf-py/gguf/quants.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from armllm.quant.weight import IntegerWeight

# type -> weights and bytes per block
BLOCKS = {"Q4_0": (32, 18), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}


def integers(kind: str, blocks: Tensor) -> IntegerWeight:
    """Blocks uint8 ``[N, B, bytes]`` of Q4_0, Q8_0 or Q6_K as integers; exact."""
    if kind == "Q8_0":
        return _weight(blocks[..., 2:].contiguous().view(torch.int8), _half(blocks[..., :2]), 8)
    if kind == "Q4_0":
        return _weight(_nibbles(blocks[..., 2:]).view(torch.int8) - 8, _half(blocks[..., :2]), 4)
    if kind == "Q6_K":
        low = torch.cat([_nibbles(half) for half in torch.split(blocks[..., :128], 64, -1)], -1)
        shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).unsqueeze(-1)
        high = torch.cat(
            [
                ((part.unsqueeze(-2) >> shifts) & 3).flatten(-2)
                for part in torch.split(blocks[..., 128:192], 32, -1)
            ],
            -1,
        )
        scales = blocks[..., 192:208].contiguous().view(torch.int8).float() * _half(blocks[..., 208:])
        return _weight((low | (high << 4)).view(torch.int8) - 32, scales, 8)
    raise ValueError(f"{kind} is not integers with scales alone")


def dequantize(kind: str, blocks: Tensor) -> Tensor:
    """Blocks uint8 ``[N, B, bytes]`` to fp32 ``[N, K]``."""
    if kind != "Q4_K":
        return integers(kind, blocks).dequantize()
    scales, minima = _scales_and_minima(blocks[..., 4:16])
    scales = scales.float() * _half(blocks[..., :2])
    minima = minima.float() * _half(blocks[..., 2:4])
    quarters = [_nibbles(part) for part in torch.split(blocks[..., 16:], 32, -1)]
    values = torch.cat(quarters, -1).float().unflatten(-1, (8, 32))  # type: ignore[no-untyped-call]
    result: Tensor = (scales.unsqueeze(-1) * values - minima.unsqueeze(-1)).flatten(1)
    return result


def _weight(values: Tensor, scales: Tensor, bits: int) -> IntegerWeight:
    return IntegerWeight(q=values.flatten(1), scales=scales.flatten(1), zeros=None, bits=bits)


def _half(octets: Tensor) -> Tensor:
    """Two bytes per block as a number, ``[N, B, 1]``."""
    return octets.contiguous().view(torch.float16).float()


def _nibbles(octets: Tensor) -> Tensor:
    """The lower halves of all bytes, then the upper ones."""
    return torch.cat((octets & 15, octets >> 4), -1)


def _scales_and_minima(octets: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minima of 6 bits each, from twelve bytes."""
    first, second, upper = torch.split(octets, 4, -1)
    scales = torch.cat((first & 63, (upper & 15) | ((first >> 2) & 48)), -1)
    minima = torch.cat((second & 63, (upper >> 4) | ((second >> 2) & 48)), -1)
    return scales, minima
