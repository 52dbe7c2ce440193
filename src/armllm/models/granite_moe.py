"""Granite 3 MoE (Granite Team 2024): Granite with experts in every layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.layers.moe import MoE, load_experts
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.granite import GraniteConfig, GraniteDecoderLayer, GraniteForCausalLM, granite_fields
from armllm.models.mixtral import MoEConfig, routing_fields

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteMoeConfig(GraniteConfig, MoEConfig):
    """Granite's factors, and how tokens are sent to experts."""


class GraniteMoeDecoderLayer(GraniteDecoderLayer):
    """Granite's layer with experts."""

    @staticmethod
    def load_mlp(config: GraniteMoeConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
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


class GraniteMoeForCausalLM(GraniteForCausalLM):
    """Llama's decoder with Granite's layers and experts."""

    layer_class = GraniteMoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteMoeConfig:
        """The config.json of Granite MoE."""
        return GraniteMoeConfig(
            **granite_fields(reader, "GraniteMoeForCausalLM"),
            **routing_fields(reader, num_experts=reader.integer("num_local_experts", 8), per_token=2),
            normalize=True,
        )
