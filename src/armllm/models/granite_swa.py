"""Granite with windows and attention sinks (Granite Team 2026), and a rotary embedding for each layer.

Dense, or with experts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.checkpoint.config import ConfigReader
from armllm.layers.rotary import RotaryEmbedding
from armllm.models.granite import (
    GraniteAttention,
    GraniteConfig,
    GraniteDecoderLayer,
    GraniteForCausalLM,
    granite_fields,
)
from armllm.models.granite_moe import GraniteMoeConfig, GraniteMoeSharedDecoderLayer
from armllm.models.mixtral import routing_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteSwaConfig(GraniteConfig):
    """thetas: of each layer's rotary embedding; 0: it has none."""

    thetas: tuple[float, ...]


class GraniteSwaAttention(GraniteAttention):
    """Granite's with one learned score per head that takes probability and gives nothing."""

    def __init__(
        self, config: GraniteSwaConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.attention.use_sinks(weights.take("sinks", config.num_heads))


class GraniteSwaDecoderLayer(GraniteDecoderLayer):
    """Granite's layer around this attention."""

    attention_class = GraniteSwaAttention


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteMoeSwaConfig(GraniteSwaConfig, GraniteMoeConfig):
    """With experts."""


class GraniteMoeSwaDecoderLayer(GraniteMoeSharedDecoderLayer):
    """The layer of Granite MoE around this attention."""

    attention_class = GraniteSwaAttention


class GraniteSWAForCausalLM(GraniteForCausalLM):
    """Granite's decoder with these layers."""

    config: GraniteSwaConfig
    layer_class = GraniteSwaDecoderLayer

    def __init__(self, config: GraniteSwaConfig, weights: Weights, *, max_positions: int) -> None:
        self.by_theta = {
            theta: RotaryEmbedding(dataclasses.replace(config.rope, theta=theta), max_positions=max_positions)
            for theta in sorted({*config.thetas} - {0})
        }
        super().__init__(config, weights, max_positions=max_positions)
        self.rotaries += self.by_theta.values()

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """The layer's."""
        return self.by_theta.get(self.config.thetas[index])

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """The same rows of all tables, since none switches with the length."""
        for rotary in self.by_theta.values():
            rotary.rows(positions, total_lens)
        return super().places(positions, total_lens)

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteSwaConfig:
        """The config.json of Granite with windows."""
        common = reader.common(
            "GraniteSWAForCausalLM",
            default_eos=100257,
            default_positions=8192,
            default_kv_heads=4,
            default_tied=True,
        )
        return GraniteSwaConfig(
            **swa_fields(reader, granite_fields(reader, common, default_eps=1e-5, kinds_known=True)),
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )


class GraniteMoeSWAForCausalLM(GraniteSWAForCausalLM):
    """The same with experts."""

    layer_class = GraniteMoeSwaDecoderLayer  # type: ignore[assignment]

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteMoeSwaConfig:
        """The config.json of Granite MoE with windows."""
        return GraniteMoeSwaConfig(
            **swa_fields(reader, granite_fields(reader, "GraniteMoeSWAForCausalLM", kinds_known=True)),
            **routing_fields(reader, num_experts=reader.integer("num_local_experts", 8), per_token=2),
            normalize=True,
            shared_size=reader.count("shared_intermediate_size", 0),
        )


def swa_fields(reader: ConfigReader, fields: dict[str, Any]) -> dict[str, Any]:
    """`GraniteSwaConfig`'s fields from those of `granite_fields`."""
    num_layers, rope = fields["num_layers"], fields["rope"]
    if rope.switch_length is not None:
        raise reader.error("rope_type 'longrope' is not supported for this architecture")
    name = "layer_rope_theta"
    thetas = reader.get(name, [rope.theta] * num_layers)
    if not isinstance(thetas, list) or len(thetas) != num_layers:
        raise reader.error(f"{name} must be a list of {num_layers} numbers, one per layer")
    numbers = [
        0 if theta == 0 else ConfigReader({name: theta}, reader.path, reader.prefix).number(name)
        for theta in thetas
    ]
    default = [SLIDING if index % 4 else FULL for index in range(num_layers)]
    kinds = read_layer_types(reader, num_layers, default)
    window = reader.optional_integer("sliding_window", 128)
    return fields | {"windows": by_layer(reader, kinds, window), "thetas": tuple(numbers)}
