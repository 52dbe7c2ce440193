"""MiniMax-M2 (MiniMax 2025): query and key normalized over all heads, experts chosen by biased sigmoids."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.layers.moe import MoE, load_experts
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import moe_block, routing_fields
from armllm.models.olmo2 import Olmo2Attention
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class MiniMaxM2Config(LlamaConfig):
    """How tokens are sent to experts."""

    routing: Routing
    num_experts_per_tok: int


class MiniMaxM2DecoderLayer(LlamaDecoderLayer):
    """OLMo 2's attention and experts."""

    attention_class = Olmo2Attention

    @staticmethod
    def load_mlp(config: MiniMaxM2Config, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """Experts w1 (gate), w3 (up), w2 (down)."""
        block, routing = moe_block(weights), config.routing
        experts = load_experts(
            block,
            routing.num_experts,
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            names=("w1", "w3", "w2"),
        )
        return MoE(GroupedRouter(block, config.hidden_size, routing, name="gate.weight"), experts)


class MiniMaxM2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with MiniMax's layers."""

    layer_class = MiniMaxM2DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> MiniMaxM2Config:
        """MiniMax-M2's config.json; the layers that predict further tokens are in no checkpoint."""
        for name, value in (
            ("scoring_func", "sigmoid"),
            ("use_routing_bias", True),
            ("use_qk_norm", True),
            ("qk_norm_type", "per_layer"),
            ("shared_intermediate_size", 0),
        ):
            reader.only(name, value)
        common = reader.common(
            "MiniMaxM2ForCausalLM",
            default_eos=200020,
            default_positions=196608,
            default_kv_heads=8,
            default_head_dim=128,
        )
        num_layers, head_dim = common["num_layers"], common["head_dim"]
        reader.only("attn_type_list", [1] * num_layers)
        rope = read_rope(
            reader,
            common,
            default_theta=5e6,
            default_partial=reader.integer("rotary_dim", head_dim) / head_dim,
        )
        number = reader.integer("num_local_experts", reader.get("num_experts", 256))
        routed = routing_fields(reader, num_experts=number, per_token=8)
        return MiniMaxM2Config(
            **llama_fields(reader, common, rope=rope, default_intermediate=1536),
            windows=same_everywhere(reader, num_layers, None),
            routing=Routing(**routed, normalize=True, sigmoid=True),
            num_experts_per_tok=routed["num_experts_per_tok"],
        )
