"""Command A+ (Cohere 2026): Cohere 2's layers with experts, behind some dense ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import load_experts
from armllm.layers.norm import LayerNorm, RMSNorm
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.cohere import CohereConfig, CohereDecoderLayer, CohereForCausalLM, cohere2_fields
from armllm.models.glm4_moe import read_sparse
from armllm.models.mixtral import routing_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cohere2MoeConfig(CohereConfig):
    """sparse: per layer, whether it has experts; dense_size: of the others. root_mean_square: kind of norm.

    shared_size: of the expert for all tokens, or 0; share: what it and the others are multiplied by.
    """

    routing: Routing
    num_experts_per_tok: int
    sparse: tuple[bool, ...]
    dense_size: int
    shared_size: int
    share: float
    root_mean_square: bool


class Cohere2MoE:
    """experts(x), or share * (experts(x) + shared(x))."""

    def __init__(self, config: Cohere2MoeConfig, weights: Weights) -> None:
        hidden_size, routing, activation = config.hidden_size, config.routing, config.activation
        self.router = GroupedRouter(weights.scope("gate"), hidden_size, routing)
        self.experts = load_experts(
            weights, routing.num_experts, hidden_size, config.intermediate_size, activation=activation
        )
        self.shared, self.share = None, config.share
        if config.shared_size:
            self.shared = GatedMLP(
                weights.scope("shared_experts"), hidden_size, config.shared_size, activation=activation
            )

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        found = self.experts(x, *self.router(x))
        return found if self.shared is None else found.add_(self.shared(x)).mul_(self.share)


class Cohere2MoeDecoderLayer(CohereDecoderLayer):
    """Cohere's layer, with experts in some."""

    @staticmethod
    def load_mlp(config: Cohere2MoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts, or an ordinary feed-forward part."""
        block = weights.scope("mlp")
        if config.sparse[index]:
            return Cohere2MoE(config, block)
        return GatedMLP(block, config.hidden_size, config.dense_size, activation=config.activation)

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> RMSNorm | LayerNorm:
        """One of either kind."""
        if config.root_mean_square:
            return RMSNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps)
        return CohereDecoderLayer.load_norm(config, weights, name)


class Cohere2MoeForCausalLM(CohereForCausalLM):
    """Cohere's decoder with these layers."""

    layer_class = Cohere2MoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> Cohere2MoeConfig:
        """The config.json of Command A+. Dense layers know positions if their pattern is 1."""
        reader.only("rope_scaling", None)  # which transformers does not read here
        fields = cohere2_fields(reader, "Cohere2MoeForCausalLM", default_head_dim=128)
        epsilon = reader.optional_number("rms_norm_eps", None)
        if epsilon is not None:
            fields["rms_norm_eps"] = epsilon
        num_layers = fields["num_layers"]
        dense = min(reader.count("first_k_dense_replace", 0), num_layers)
        sparse = read_sparse(reader, dense)
        dense_pattern = reader.integer("prefix_dense_sliding_window_pattern", 1)
        pattern = reader.integer("sliding_window_pattern", 4)
        default = [SLIDING if (index + 1) % dense_pattern else FULL for index in range(dense)]
        default += [SLIDING if (index + 1) % pattern else FULL for index in range(num_layers - dense)]
        kinds = read_layer_types(reader, num_layers, default)
        routed = routing_fields(reader, num_experts=reader.integer("num_experts", 8), per_token=2)
        sigmoid = reader.choice("expert_selection_fn", "softmax", ("sigmoid", "softmax")) == "sigmoid"
        normalize = reader.boolean("norm_topk_prob", default=True) or not sigmoid
        combination = reader.choice("shared_expert_combination_strategy", "average", ("average", "sum"))
        size = fields["intermediate_size"]
        return Cohere2MoeConfig(
            **fields,
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 4096)),
            rotates=tuple(
                kind == SLIDING or (dense_pattern == 1 and not has_experts)
                for kind, has_experts in zip(kinds, sparse, strict=True)
            ),
            routing=Routing(**routed, normalize=normalize, sigmoid=sigmoid, biased=False),
            num_experts_per_tok=routed["num_experts_per_tok"],
            sparse=sparse,
            dense_size=reader.optional_integer("prefix_dense_intermediate_size", None) or size,
            shared_size=size * reader.count("num_shared_experts", 0),
            share=0.5 if combination == "average" else 1.0,
            root_mean_square=epsilon is not None,
        )
