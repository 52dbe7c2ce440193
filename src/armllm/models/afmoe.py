"""AFMoE, Arcee's Trinity (2025): windows, gates of what heads find, experts, norms around both branches."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.linear import load_linear
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.gemma2 import NormAroundDecoderLayer
from armllm.models.glm4_moe import GroupedMoE, GroupedMoEConfig
from armllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import routing_fields
from armllm.models.qwen3 import Qwen3Attention
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

SIZES = {"hidden_size": 2048, "num_hidden_layers": 32, "vocab_size": 200192}
# what files of Trinity say, and the class in transformers takes for granted
FIXED = {"route_norm": True, "score_func": "sigmoid"}
FIXED |= dict.fromkeys(("n_group", "topk_group", "num_expert_groups", "num_limited_groups"), 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AfmoeConfig(GroupedMoEConfig):
    """embedding_factor: of the embeddings."""

    embedding_factor: float


class AfmoeAttention(Qwen3Attention):
    """Qwen3's attention; what the heads find is multiplied by sigmoids of the hidden states."""

    def __init__(
        self, config: AfmoeConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.gates = load_linear(weights, {"gate_proj": self.sizes[0]}, config.hidden_size, bias=False)

    def attend(self, x: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What the heads find, with the gates."""
        found = super().attend(x, places, metadata)
        return found * torch.sigmoid(self.gates(x)).view(found.shape)


class AfmoeMoE(GroupedMoE):
    """experts(x) + shared(x)."""

    @staticmethod
    def load_router(config: GroupedMoEConfig, weights: Weights) -> GroupedRouter:
        """The bias is beside the experts."""
        return GroupedRouter(
            weights, config.hidden_size, config.routing, name="router.gate.weight", bias="expert_bias"
        )


class AfmoeDecoderLayer(NormAroundDecoderLayer):
    """Attention with gates, and experts in all but the first layers."""

    attention_class = AfmoeAttention
    norm_names = ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm")

    @staticmethod
    def load_mlp(config: AfmoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts with a shared one, or an ordinary feed-forward part."""
        if config.sparse[index]:
            return AfmoeMoE(config, weights.scope("mlp"))
        return LlamaDecoderLayer.load_mlp(config, weights, index)


class AfmoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    config: AfmoeConfig
    layer_class = AfmoeDecoderLayer

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """Layers without a window know no positions."""
        return self.rotary if self.config.windows[index] is not None else None

    def embed(self, token_ids: Tensor) -> Tensor:
        """Maybe scaled embeddings."""
        return super().embed(token_ids).mul_(self.config.embedding_factor)

    @staticmethod
    def read_config(reader: ConfigReader) -> AfmoeConfig:
        """The config.json of AFMoE."""
        for name, value in FIXED.items():
            reader.only(name, value)
        common = reader.common(
            "AfmoeForCausalLM",
            default_positions=16384,
            default_heads=16,
            default_head_dim=128,
            default_sizes=SIZES,
        )
        num_layers, bias = common["num_layers"], reader.boolean("attention_bias", default=False)
        interval = reader.integer("global_attn_every_n_layers", 4)
        default = [SLIDING if (index + 1) % interval else FULL for index in range(num_layers)]
        scaled = reader.boolean("mup_enabled", default=False)
        return AfmoeConfig(
            **llama_fields(reader, common, default_eps=1e-5, default_intermediate=6144),
            **_expert_fields(reader, num_layers),
            windows=by_layer(
                reader,
                read_layer_types(reader, num_layers, default),
                reader.optional_integer("sliding_window", 1024),
            ),
            qkv_bias=bias,
            output_bias=bias,
            embedding_factor=common["hidden_size"] ** 0.5 if scaled else 1.0,
        )


def _expert_fields(reader: ConfigReader, num_layers: int) -> dict[str, Any]:
    routed = routing_fields(reader, num_experts=reader.integer("num_experts", 64), per_token=6)
    size, dense = reader.integer("moe_intermediate_size", 1408), reader.count("num_dense_layers", 1)
    return {
        "routing": Routing(**routed, normalize=True, factor=reader.number("route_scale", 1.0), sigmoid=True),
        "num_experts_per_tok": routed["num_experts_per_tok"],
        "moe_intermediate_size": size,
        "shared_size": size * reader.integer("num_shared_experts", 2),
        "sparse": tuple(index >= dense for index in range(num_layers)),
        "num_predicting": 0,
    }
