"""Granite 3 MoE (Granite Team 2024): Granite with experts in every layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import MoE, load_experts
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.granite import GraniteConfig, GraniteDecoderLayer, GraniteForCausalLM, granite_fields
from armllm.models.mixtral import MoEConfig, routing_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteMoeConfig(GraniteConfig, MoEConfig):
    """Granite's factors, and how tokens are sent to experts; shared_size: of what is for all tokens, or 0."""

    shared_size: int = 0


class GraniteMoeDecoderLayer(GraniteDecoderLayer):
    """Granite's layer with experts."""

    @staticmethod
    def load_mlp(config: GraniteMoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG004
        """Experts, all in one tensor; transformers 5 calls the router by a shorter name."""
        block = weights.scope("block_sparse_moe")
        routing = Routing(
            num_experts=config.num_experts, num_experts_per_tok=config.num_experts_per_tok, normalize=True
        )
        router = block.scope("router")
        experts = load_experts(
            block,
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
        )
        return MoE(GroupedRouter(router.scope("layer", optional=True), config.hidden_size, routing), experts)


class GraniteMoeSharedDecoderLayer(GraniteMoeDecoderLayer):
    """The same with one feed-forward part for all tokens beside the experts."""

    @staticmethod
    def load_mlp(config: GraniteMoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Without experts, that part alone."""
        if not config.shared_size:
            return GraniteMoeDecoderLayer.load_mlp(config, weights, index)
        shared = GatedMLP(
            weights.scope("shared_mlp"),
            config.hidden_size,
            config.shared_size,
            activation=config.activation,
            names=("input_linear",),
            down="output_linear",
        )
        if not config.num_experts:
            return shared
        experts = GraniteMoeDecoderLayer.load_mlp(config, weights, index)
        return lambda x: experts(x).add_(shared(x))


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """Llama's decoder with Granite's layers and experts."""

    layer_class: type[GraniteMoeDecoderLayer] = GraniteMoeDecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GraniteMoeConfig:
        """The config.json of Granite MoE."""
        return GraniteMoeConfig(
            **granite_fields(reader, cls.__name__),
            **routing_fields(reader, num_experts=reader.integer("num_local_experts", 8), per_token=2),
            normalize=True,
        )


class GraniteMoeSharedForCausalLM(GraniteMoeForCausalLM):
    """The same with a part for all tokens."""

    layer_class = GraniteMoeSharedDecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GraniteMoeConfig:
        """The config.json of Granite MoE with shared experts."""
        shared = reader.count("shared_intermediate_size", 0)
        return dataclasses.replace(super().read_config(reader), shared_size=shared)
