"""Rotary position embedding (Su et al. 2021) and the ways checkpoints stretch it."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from armllm import kernels


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeParameters:
    """``rope_type`` "default", or "llama3": Llama 3.1's blend by wavelength, with four more numbers."""

    rope_type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def inverse_frequencies(self, rotary_dim: int) -> Tensor:
        """Radians per position, fp32 ``[rotary_dim / 2]``.

        In fp32 from the start, as checkpoints were trained: fp64 would differ by up to position * 1e-7
        radians.
        """
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        frequencies = 1.0 / (self.theta**exponents)
        if self.rope_type == "default":
            return frequencies
        # Long waves are stretched by the factor, short ones kept, those between are blended linearly in
        # 1/wavelength.
        wavelengths = 2 * math.pi / frequencies
        waves_in_context = self.original_max_position_embeddings / wavelengths
        keep = (waves_in_context - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - keep) * frequencies / self.factor + keep * frequencies
        return torch.where(
            waves_in_context > self.high_freq_factor,
            frequencies,
            torch.where(waves_in_context < self.low_freq_factor, frequencies / self.factor, blended),
        )


class RotaryEmbedding:
    """Rotates queries and keys by their positions; one table for all layers."""

    def __init__(self, rope: RopeParameters, *, rotary_dim: int, max_positions: int, device: str) -> None:
        positions = torch.arange(max_positions, dtype=torch.float32, device=device)
        angles = torch.outer(positions, rope.inverse_frequencies(rotary_dim).to(device))
        self.cos_sin_cache = torch.cat((angles.cos(), angles.sin()), dim=-1)

    def __call__(self, positions: Tensor, query: Tensor, key: Tensor) -> None:
        """In place on ``query[T, num_heads, head_dim]`` and ``key[T, num_kv_heads, head_dim]``."""
        kernels.rotary_embedding(positions, query, key, self.cos_sin_cache)
