"""LFM2 with a mixture of experts (Liquid AI 2025): LFM2's layers, experts chosen by biased sigmoids."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.layers.moe import MoE, load_experts
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.lfm2 import (
    CONVOLUTION,
    Lfm2Config,
    Lfm2DecoderLayer,
    Lfm2ForCausalLM,
    lfm2_fields,
    lfm2_layers,
)
from armllm.models.mixtral import routing_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lfm2MoeConfig(Lfm2Config):
    """num_dense: layers before the first one with experts."""

    routing: Routing
    num_experts_per_tok: int
    moe_intermediate_size: int
    num_dense: int


class Lfm2MoeDecoderLayer(Lfm2DecoderLayer):
    """LFM2's layer, with experts in all but the first ones."""

    @staticmethod
    def load_mlp(config: Lfm2MoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:  # type: ignore[override]
        """Experts w1 (gate), w3 (up), w2 (down), or one such part."""
        if index < config.num_dense:
            return Lfm2DecoderLayer.load_mlp(config, weights, index)
        block = weights.scope("feed_forward")
        experts = load_experts(
            block,
            config.routing.num_experts,
            config.hidden_size,
            config.moe_intermediate_size,
            activation=config.activation,
            names=("w1", "w3", "w2"),
        )
        router = GroupedRouter(
            block, config.hidden_size, config.routing, name="gate.weight", bias="expert_bias"
        )
        return MoE(router, experts)


class Lfm2MoeForCausalLM(Lfm2ForCausalLM):
    """LFM2's decoder with experts."""

    layer_class = Lfm2MoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> Lfm2MoeConfig:
        """The config.json of LFM2 with experts."""
        reader.get("layer_types")  # its class has no default
        common, kinds = lfm2_layers(reader, "Lfm2MoeForCausalLM", [CONVOLUTION])
        fields = lfm2_fields(reader, common, kinds, default_intermediate=7168)
        routed = routing_fields(reader, num_experts=reader.integer("num_experts", 32), per_token=4)
        routing = Routing(
            **routed,
            normalize=reader.boolean("norm_topk_prob", default=True),
            factor=reader.number("routed_scaling_factor", 1.0),
            sigmoid=True,
            biased=reader.boolean("use_expert_bias", default=True),
            epsilon=1e-6,
        )
        return Lfm2MoeConfig(
            **fields,
            windows=(None,) * len(kinds),
            routing=routing,
            num_experts_per_tok=routing.num_experts_per_tok,
            moe_intermediate_size=reader.integer("moe_intermediate_size", 1792),
            num_dense=reader.count("num_dense_layers", 2),
        )
