"""Rotary position embedding (Su et al. 2021) and the ways checkpoints stretch it."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from armllm import kernels
from armllm.layers.embedding import gather

ROWS_AT_FIRST = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeParameters:
    """How the first ``rotary_dim`` elements of a head turn with the position.

    rope_type: "default"; "linear": positions divided by factor (Chen et al. 2023); "dynamic": as default,
    since a model is not run beyond max_position_embeddings, where its base would begin to grow with every
    token; "llama3": Llama 3.1's blend by wavelength; "yarn" (Peng et al. 2023); "longrope" (Ding et al.
    2024), whose short_factor serves sequences of up to original_max_position_embeddings tokens, long_factor
    longer ones.
    "proportional": as linear, but only a ``share`` of the pairs turns (Gemma 4).
    attention_factor multiplies both cosines and sines, long_attention_factor in its place those of sequences
    beyond the switch.
    interleaved: pairs are neighbors, (2i, 2i + 1), and not (i, i + rotary_dim / 2).
    sections: how many pairs turn with each axis of a position that has several (Bai et al. 2025).
    """

    rotary_dim: int
    rope_type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    attention_factor: float = 1.0
    original_max_position_embeddings: int = 8192
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    long_attention_factor: float | None = None
    interleaved: bool = False
    share: float = 1.0
    sections: tuple[int, ...] = ()

    @property
    def switch_length(self) -> int | None:
        """Longest sequence, in tokens, before the frequencies change for all of it; None: they never do."""
        same = self.short_factor == self.long_factor
        same = same and self.long_attention_factor in (None, self.attention_factor)
        return None if same else self.original_max_position_embeddings

    def inverse_frequencies(self, *, long: bool = False) -> Tensor:
        """Radians per position, fp32 ``[rotary_dim / 2]``; ``long``: beyond `switch_length`.

        In fp32 from the start, as checkpoints were trained: fp64 would differ by up to position * 1e-7
        radians.
        """
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim
        periods = self.theta**exponents
        if self.rope_type == "linear":
            return 1.0 / periods / self.factor
        if self.rope_type == "proportional":
            turning = int(self.share * self.rotary_dim // 2)
            return torch.cat((1.0 / periods[:turning] / self.factor, torch.zeros(len(periods) - turning)))
        if self.rope_type == "longrope":
            return 1.0 / (torch.tensor(self.long_factor if long else self.short_factor) * periods)
        if self.rope_type == "yarn":
            return self._yarn(periods)
        if self.rope_type == "llama3":
            return self._llama3(1.0 / periods)
        return 1.0 / periods

    def _llama3(self, frequencies: Tensor) -> Tensor:
        """Stretch long waves by the factor, keep short ones, blend those between by 1/wavelength."""
        wavelengths = 2 * math.pi / frequencies
        waves_in_context = self.original_max_position_embeddings / wavelengths
        keep = (waves_in_context - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blended = (1 - keep) * frequencies / self.factor + keep * frequencies
        return torch.where(
            waves_in_context >= self.high_freq_factor,  # which may be the lower one (Llama 4)
            frequencies,
            torch.where(waves_in_context < self.low_freq_factor, frequencies / self.factor, blended),
        )

    def _yarn(self, periods: Tensor) -> Tensor:
        """Blend over the dimensions between beta_fast and beta_slow turns in the original context."""

        def dimension(turns: float) -> float:
            waves = self.original_max_position_embeddings / (turns * 2 * math.pi)
            return self.rotary_dim * math.log(waves) / (2 * math.log(self.theta))

        first, last = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, self.rotary_dim - 1)
        if first == last:
            last += 0.001
        ramp = (torch.arange(self.rotary_dim // 2, dtype=torch.float32) - first) / (last - first)
        stretched = ramp.clamp(0, 1)
        return 1.0 / (self.factor * periods) * stretched + 1.0 / periods * (1 - stretched)


class RotaryEmbedding:
    """Rotates queries and keys by their positions; layers with equal parameters share one.

    The table of cosines and sines grows with the positions seen: for 131072 of them it would take 64 MiB.
    Where frequencies switch with the length, the rows for long sequences stand behind those for short ones.
    """

    def __init__(self, rope: RopeParameters, *, max_positions: int) -> None:
        self.rope = rope
        self.max_positions = max_positions
        self.short_rows = min(rope.switch_length or 0, max_positions)
        self.cos_sin_cache = torch.empty(0, rope.rotary_dim)

    def rows(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Table rows int64 ``[T]``, which `__call__` wants, of tokens at ``positions[T]``.

        ``total_lens`` int64 ``[T]``: all tokens of each one's sequence, those of later steps included.
        Of ``positions[axes, T]`` it is a table of its own, fp32 ``[T, rotary_dim]``.
        """
        if self.short_rows:
            positions = positions + self.short_rows * (total_lens > self.short_rows)
        needed = int(positions.max()) + 1 if positions.numel() else 0
        if needed > len(self.cos_sin_cache):
            self._grow(max(needed, ROWS_AT_FIRST, 2 * len(self.cos_sin_cache)))
        return positions if positions.dim() == 1 else self._of_axes(positions)

    def __call__(self, rows: Tensor, query: Tensor, key: Tensor) -> None:
        """In place on ``query[T, num_heads, head_dim]`` and ``key[T, num_kv_heads, head_dim]``."""
        table = self.cos_sin_cache
        if rows.is_floating_point():
            rows, table = torch.arange(len(rows)), rows
        kernels.rotary_embedding(rows, query, key, table, interleaved=self.rope.interleaved)

    def _of_axes(self, positions: Tensor) -> Tensor:
        """The table of tokens at ``positions[axes, T]``: each section of the pairs is from its axis."""
        halves = [
            torch.cat(
                [part[axis] for axis, part in enumerate(torch.split(half, list(self.rope.sections), dim=-1))],
                dim=-1,
            )
            for half in self.cos_sin_cache[positions].chunk(2, dim=-1)
        ]
        return torch.cat(halves, dim=-1)

    def _grow(self, num_rows: int) -> None:
        parts = [self._table(self.short_rows, long=False)] if self.short_rows else []
        num_rows = min(max(0, num_rows - self.short_rows), self.max_positions)
        parts.append(self._table(num_rows, long=bool(self.short_rows)))
        self.cos_sin_cache = torch.cat(parts)

    def _table(self, num_rows: int, *, long: bool) -> Tensor:
        positions = torch.arange(num_rows, dtype=torch.float32)
        angles = torch.outer(positions, self.rope.inverse_frequencies(long=long))
        factor = self.rope.long_attention_factor if long else None
        factor = self.rope.attention_factor if factor is None else factor
        return torch.cat((angles.cos(), angles.sin()), dim=-1) * factor


class Temperature(RotaryEmbedding):
    """In place of a rotation: queries grow with their position (Nakanishi 2025, arXiv:2501.19399).

    ``growth``: by how much; ``interval``: after how many tokens; ``first``: what the first token counts as.
    """

    def __init__(
        self, rope: RopeParameters, growth: float, interval: float, *, first: int, max_positions: int
    ) -> None:
        super().__init__(rope, max_positions=max_positions)
        self.growth, self.interval, self.first = growth, interval, first

    def __call__(self, rows: Tensor, query: Tensor, key: Tensor) -> None:  # noqa: ARG002 - a rotation's
        """In place on ``query[T, num_heads, head_dim]``."""
        query.mul_(gather(self.cos_sin_cache, rows).unsqueeze(1))

    def _table(self, num_rows: int, *, long: bool) -> Tensor:  # noqa: ARG002 - a rotation's
        positions = torch.arange(self.first, num_rows + self.first, dtype=torch.float32)
        return (torch.log1p(torch.floor(positions / self.interval)) * self.growth + 1.0).unsqueeze(1)
