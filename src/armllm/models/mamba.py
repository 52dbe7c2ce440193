"""Mamba 2 (Dao and Gu 2024, arXiv:2405.21060), as families have it beside attention."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm import kernels
from armllm.layers.causal_conv import CausalConv
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.recurrent import RecurrentLayer, StateShape, check_recurrence, decay_of
from armllm.models.llama import LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class MambaConfig(LlamaConfig):
    """Sizes and biases of Mamba 2; smallest_step: of the scan, 0: any."""

    mamba_heads: int
    mamba_head_dim: int
    mamba_groups: int
    state_size: int
    conv_width: int
    conv_bias: bool
    projection_bias: bool
    mamba_output_bias: bool
    smallest_step: float = 0.0

    @property
    def mamba_size(self) -> int:
        """Of all heads."""
        return self.mamba_heads * self.mamba_head_dim


class GroupNorm:
    """Root mean square normalization of each group of heads, in fp32."""

    def __init__(self, config: MambaConfig, weight: Tensor) -> None:
        self.weight = weight
        self.groups = config.mamba_groups
        self.eps = config.rms_norm_eps

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, mamba_size]`` to the same shape."""
        grouped = x.view(len(x), self.groups, x.shape[1] // self.groups)
        scale = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + self.eps)
        return (grouped * scale).flatten(1) * self.weight


class Mamba(RecurrentLayer):
    """A convolution, the selective scan, and a norm of its gated results."""

    def __init__(self, config: MambaConfig, weights: Weights) -> None:
        self.config = config
        size, bias = config.mamba_size, config.projection_bias
        self.channels = size + 2 * config.mamba_groups * config.state_size
        self.sizes = (size, self.channels, config.mamba_heads)
        self.in_proj = load_linear(weights, {"in_proj": sum(self.sizes)}, config.hidden_size, bias=bias)
        self.conv = CausalConv(
            weights.scope("conv1d"), self.channels, config.conv_width, bias=config.conv_bias
        )
        exact = weights.in_dtype(torch.float32)
        self.decay = decay_of(exact.take("A_log", config.mamba_heads))
        self.step_bias = exact.take("dt_bias", config.mamba_heads)
        self.skip = exact.take("D", config.mamba_heads)
        self.norm = self.load_norm(exact)
        bias = config.mamba_output_bias
        self.out_proj = load_linear(weights, {"out_proj": config.hidden_size}, size, bias=bias)

    def load_norm(self, exact: Weights) -> Callable[[Tensor], Tensor]:
        """The norm of what the heads found."""
        return GroupNorm(self.config, exact.take("norm.weight", self.config.mamba_size))

    def project(self, x: Tensor) -> Tensor:
        """Gates, what enters the convolution, and steps, in a row for each token."""
        return self.in_proj(x)

    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """What the convolution remembers, and the state of the scan in fp32."""
        config = self.config
        return [
            StateShape((config.conv_width - 1, self.channels), dtype),
            StateShape(
                (kernels.state_size(config.mamba_heads, config.state_size, config.mamba_head_dim),),
                torch.float32,
            ),
        ]

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """``x[T, hidden_size]`` to the same of ``rows``, or of all tokens."""
        del places
        config, (before, memory) = self.config, self.sequences(metadata)
        gate, joined, step = self.project(x).split_with_sizes(self.sizes, 1)
        joined = self.conv(joined, before)
        each = config.mamba_groups * config.state_size
        inputs, writes, reads = joined.split_with_sizes((config.mamba_size, each, each), 1)
        heads, groups = (config.mamba_heads, config.mamba_head_dim), (config.mamba_groups, config.state_size)
        step = torch.nn.functional.softplus(step.float() + self.step_bias)
        if config.smallest_step:
            step = step.clamp_(min=config.smallest_step)
        found = torch.empty(len(x), *heads, dtype=torch.float32)
        kernels.selective_scan(
            found,
            inputs.view(len(x), *heads),
            step,
            step * self.decay,
            writes.view(len(x), *groups),
            reads.view(len(x), *groups),
            self.skip,
            memory,
        )
        found = found.flatten(1)
        if rows is not None:
            found, gate = found[rows], gather(gate.contiguous(), rows)
        return self.out_proj(self.gated(found, torch.nn.functional.silu(gate.float())).to(x.dtype))

    def gated(self, found: Tensor, gate: Tensor) -> Tensor:
        """What the heads found with the gates, normalized; all in fp32."""
        return self.norm(found * gate)


def only_free_steps(reader: ConfigReader) -> None:
    """Refuse time_step_limit, which would bound the steps of the scan."""
    reader.only("time_step_limit", None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}])


def mamba_fields(reader: ConfigReader, size: int) -> dict[str, Any]:
    """The fields of a `MambaConfig` by the names of Granite 4 and Falcon-H1; ``size``: of all heads."""
    heads, groups = reader.integer("mamba_n_heads", 128), reader.integer("mamba_n_groups", 1)
    automatic = reader.get("mamba_d_head", "auto") == "auto"
    head_dim = size // heads if automatic else reader.integer("mamba_d_head")
    if head_dim * heads != size or heads % groups:
        raise reader.error(
            f"mamba_n_heads {heads} of {head_dim} are not mamba_expand times hidden_size, {size}, or"
            f" mamba_n_groups {groups} does not divide them"
        )
    check_recurrence(reader, ("mamba_d_conv", 4), ("mamba_d_state", 256))
    reader.get("mamba_chunk_size", None)  # any size has the same result
    bias = reader.boolean("mamba_proj_bias", default=False)
    return {
        "mamba_heads": heads,
        "mamba_head_dim": head_dim,
        "mamba_groups": groups,
        "state_size": reader.integer("mamba_d_state", 256),
        "conv_width": reader.integer("mamba_d_conv", 4),
        "conv_bias": reader.boolean("mamba_conv_bias", default=True),
        "projection_bias": bias,
        "mamba_output_bias": bias,
    }
