"""Granite 4 (Granite Team 2025): Granite with Mamba 2 in most layers, dense or with experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm import kernels
from armllm.layers.causal_conv import CausalConv
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.recurrent import RecurrentLayer, StateShape, check_recurrence, decay_of
from armllm.models.granite import GraniteForCausalLM, granite_fields
from armllm.models.granite_moe import GraniteMoeConfig, GraniteMoeSharedDecoderLayer
from armllm.models.mixtral import routing_fields
from armllm.models.windows import FULL, LINEAR

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding
    from armllm.models.llama import Mixer

# as IBM's files call the kinds, and as transformers 5 does
KINDS = {"mamba": LINEAR, "attention": FULL, LINEAR: LINEAR, FULL: FULL}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteHybridConfig(GraniteMoeConfig):
    """kinds: of each layer. turns: attention knows positions. num_experts: 0: dense. The rest is Mamba's."""

    kinds: tuple[str, ...]
    turns: bool
    mamba_heads: int
    mamba_head_dim: int
    mamba_groups: int
    state_size: int
    conv_width: int
    conv_bias: bool
    projection_bias: bool

    @property
    def mamba_size(self) -> int:
        """Of all heads."""
        return self.mamba_heads * self.mamba_head_dim


class Mamba(RecurrentLayer):
    """A convolution, the selective scan, and a norm of its gated results."""

    def __init__(self, config: GraniteHybridConfig, weights: Weights) -> None:
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
        self.norm = exact.take("norm.weight", size)
        self.out_proj = load_linear(weights, {"out_proj": config.hidden_size}, size, bias=bias)

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
        gate, joined, step = self.in_proj(x).split_with_sizes(self.sizes, 1)
        joined = self.conv(joined, before)
        each = config.mamba_groups * config.state_size
        inputs, writes, reads = joined.split_with_sizes((config.mamba_size, each, each), 1)
        heads, groups = (config.mamba_heads, config.mamba_head_dim), (config.mamba_groups, config.state_size)
        step = torch.nn.functional.softplus(step.float() + self.step_bias)
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
        gated = found * torch.nn.functional.silu(gate.float())
        grouped = gated.view(len(gated), config.mamba_groups, config.mamba_size // config.mamba_groups)
        scale = torch.rsqrt(grouped.square().mean(-1, keepdim=True) + config.rms_norm_eps)
        return self.out_proj(((grouped * scale).flatten(1) * self.norm).to(x.dtype))


class GraniteHybridDecoderLayer(GraniteMoeSharedDecoderLayer):
    """Granite's layer around Mamba or attention."""

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> Mixer:
        """What the configuration says of the layer."""
        if config.kinds[index] == LINEAR:
            return Mamba(config, weights.scope("mamba"))
        return super().load_attention(config, weights, rotary if config.turns else None, index)


class GraniteMoeHybridForCausalLM(GraniteForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = GraniteHybridDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteHybridConfig:
        """Granite 4's config.json."""
        kinds = _kinds(reader)
        fields = granite_fields(reader, "GraniteMoeHybridForCausalLM", kinds_known=True)
        reader.only("hidden_act", "silu", "swish")
        reader.only("time_step_limit", None, [0.0, float("inf")], [0.0, {"__float__": "Infinity"}])
        reader.only("normalization_function", "rmsnorm")
        experts: dict[str, Any] = {"num_experts": 0, "num_experts_per_tok": 0}
        if reader.get("num_local_experts", 8) != 0:
            number = reader.integer("num_local_experts", 8)
            experts = routing_fields(reader, num_experts=number, per_token=2)
        return GraniteHybridConfig(
            **fields,
            **experts,
            **_mamba_fields(reader, fields["hidden_size"]),
            normalize=True,
            kinds=kinds,
            is_recurrent=LINEAR in kinds,
            turns=reader.choice("position_embedding_type", "nope", ("nope", "rope")) == "rope",
            shared_size=reader.integer("shared_intermediate_size", 1024),
        )


def _kinds(reader: ConfigReader) -> tuple[str, ...]:
    count = reader.integer("num_hidden_layers")
    listed = reader.get("layer_types", reader.get("layers_block_type", None)) or [LINEAR] * min(count, 10_000)
    if not isinstance(listed, list) or len(listed) != count:
        raise reader.error(f"layer_types must be a list of {count} kinds, one per layer")
    for kind in listed:
        if not isinstance(kind, str) or kind not in KINDS:
            raise reader.error(f"layer_types {kind!r} is not supported, only {', '.join(KINDS)}")
    return tuple(KINDS[kind] for kind in listed)


def _mamba_fields(reader: ConfigReader, hidden_size: int) -> dict[str, Any]:
    heads, groups = reader.integer("mamba_n_heads", 128), reader.integer("mamba_n_groups", 1)
    size = reader.integer("mamba_expand", 2) * hidden_size
    automatic = reader.get("mamba_d_head", "auto") == "auto"
    head_dim = size // heads if automatic else reader.integer("mamba_d_head")
    if head_dim * heads != size or heads % groups:
        raise reader.error(
            f"mamba_n_heads {heads} of {head_dim} are not mamba_expand times hidden_size, {size}, or"
            f" mamba_n_groups {groups} does not divide them"
        )
    check_recurrence(reader, ("mamba_d_conv", 4), ("mamba_d_state", 256))
    reader.get("mamba_chunk_size", None)  # any size has the same result
    return {
        "mamba_heads": heads,
        "mamba_head_dim": head_dim,
        "mamba_groups": groups,
        "state_size": reader.integer("mamba_d_state", 256),
        "conv_width": reader.integer("mamba_d_conv", 4),
        "conv_bias": reader.boolean("mamba_conv_bias", default=True),
        "projection_bias": reader.boolean("mamba_proj_bias", default=False),
    }
