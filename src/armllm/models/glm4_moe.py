"""GLM-4.5 (GLM-4.5 Team 2025): many experts chosen by biased sigmoids, a shared one, dense first layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import load_experts
from armllm.layers.norm import RMSNorm
from armllm.layers.routing import GroupedRouter, Routing
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.mixtral import routing_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader, ModelConfig
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupedMoEConfig(LlamaConfig):
    """sparse: per layer, whether it has experts. shared_size: of the expert for all tokens.

    num_predicting: layers behind the last one that predict further tokens, which are not computed here.
    """

    routing: Routing
    moe_intermediate_size: int
    num_experts_per_tok: int
    shared_size: int
    sparse: tuple[bool, ...]
    num_predicting: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig(GroupedMoEConfig):
    """qk_norm: each head's query and key are normalized."""

    qk_norm: bool


class GroupedMoE:
    """experts(x) + shared(x)."""

    def __init__(self, config: GroupedMoEConfig, weights: Weights) -> None:
        hidden_size = config.hidden_size
        self.router = self.load_router(config, weights)
        self.experts = load_experts(
            weights,
            config.routing.num_experts,
            hidden_size,
            config.moe_intermediate_size,
            activation=config.activation,
        )
        self.shared = GatedMLP(
            weights.scope("shared_experts"), hidden_size, config.shared_size, activation=config.activation
        )

    @staticmethod
    def load_router(config: GroupedMoEConfig, weights: Weights) -> GroupedRouter:
        """What chooses experts."""
        beside = weights.has("e_score_correction_bias")  # the bias, as EXAONE stores it
        router, name = (weights, "gate.weight") if beside else (weights.scope("gate"), "weight")
        return GroupedRouter(router, config.hidden_size, config.routing, name=name)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.experts(x, *self.router(x)).add_(self.shared(x))


class GroupedMoEDecoderLayer(LlamaDecoderLayer):
    """Llama's layer, with experts in some."""

    @staticmethod
    def load_mlp(config: GroupedMoEConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts with a shared one, or an ordinary feed-forward part."""
        if config.sparse[index]:
            return GroupedMoE(config, weights.scope("mlp"))
        return LlamaDecoderLayer.load_mlp(config, weights, index)


class Glm4MoeAttention(LlamaAttention):
    """Each head's query and key may be normalized before they are rotated."""

    def __init__(
        self, config: Glm4MoeConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.norms = None
        if config.qk_norm:
            self.norms = [
                RMSNorm(weights.scope(name), config.head_dim, config.rms_norm_eps)
                for name in ("q_norm", "k_norm")
            ]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        query, key, value = super().project(x)
        if self.norms is None:
            return query, key, value
        query_norm, key_norm = self.norms
        return query_norm(query), key_norm(key), value


class Glm4MoeDecoderLayer(GroupedMoEDecoderLayer):
    """GLM-4.5's attention and experts."""

    attention_class = Glm4MoeAttention


class Glm4MoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with GLM-4.5's layers."""

    layer_class: type[LlamaDecoderLayer] = Glm4MoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> Glm4MoeConfig:
        """GLM-4.5's config.json."""
        common = reader.common("Glm4MoeForCausalLM", default_positions=131072, default_kv_heads=8)
        rope = read_rope(
            reader,
            common,
            default_partial=0.5,
        )
        routing = read_routing(reader, num_experts=128, per_token=8, groups=(1, 1), factor=1.0, sigmoid=True)
        return Glm4MoeConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope, default_intermediate=10944),
            **sparse_fields(reader, routing, size=1408, shared=1, first=1),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("attention_bias", default=False),
            qk_norm=reader.boolean("use_qk_norm", default=False),
        )

    @staticmethod
    def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
        """Also the layers that predict further tokens."""
        return (*LlamaForCausalLM.ignored_tensors(config), *predicting_tensors(config))


def predicting_tensors(config: Any) -> list[str]:
    """Patterns of the layers behind the last one."""
    first = config.num_layers
    return [f"*layers.{index}.*" for index in range(first, first + config.num_predicting)]


def sparse_fields(
    reader: ConfigReader, routing: Routing, *, size: int, shared: int | None, first: int
) -> dict[str, Any]:
    """`GroupedMoEConfig`'s own fields; the defaults are those of the family's class."""
    size = reader.integer("moe_intermediate_size", size)
    predicting = reader.count("num_nextn_predict_layers", reader.get("num_mtp_layers", 1))
    dense, layers = reader.count("first_k_dense_replace", first), reader.num_layers()
    return {
        "routing": routing,
        "moe_intermediate_size": size,
        "num_experts_per_tok": routing.num_experts_per_tok,
        "shared_size": size * reader.integer("n_shared_experts", shared),
        "sparse": tuple(index >= dense for index in range(layers)),
        "num_predicting": min(predicting, 16),
    }


DENSE, SPARSE = "dense", "sparse"


def read_sparse(reader: ConfigReader, dense: int) -> tuple[bool, ...]:
    """mlp_layer_types: per layer, whether it has experts; by default, all but the first ``dense``."""
    layers = reader.num_layers()
    kinds = reader.get("mlp_layer_types", [DENSE if index < dense else SPARSE for index in range(layers)])
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in (DENSE, SPARSE) for k in kinds):
        raise reader.error(f"mlp_layer_types must be a list of {layers} times {DENSE} or {SPARSE}")
    return tuple(kind == SPARSE for kind in kinds)


def read_routing(
    reader: ConfigReader,
    *,
    num_experts: int | None,
    per_token: int | None,
    groups: tuple[int | None, int | None] | None,
    factor: float,
    sigmoid: bool,
) -> Routing:
    """How experts are chosen; the defaults are those of the family's class. No ``groups``: one of them."""
    number = reader.integer("n_routed_experts", reader.get("num_local_experts", num_experts))
    fields = routing_fields(reader, num_experts=number, per_token=per_token)
    num_groups = top_groups = 1
    if groups is not None:
        num_groups, top_groups = reader.integer("n_group", groups[0]), reader.integer("topk_group", groups[1])
    in_group = number // num_groups
    smallest = 2 if sigmoid else 1
    if number % num_groups or in_group < smallest:
        raise reader.error(
            f"n_group {num_groups} does not cut {number} experts into groups of {smallest} or more"
        )
    if top_groups > num_groups or fields["num_experts_per_tok"] > top_groups * in_group:
        raise reader.error(f"topk_group {top_groups} of {num_groups} leaves too few experts or groups")
    return Routing(
        **fields,
        normalize=reader.boolean("norm_topk_prob", default=sigmoid),
        factor=reader.number("routed_scaling_factor", factor),
        groups=(num_groups, top_groups),
        sigmoid=sigmoid,
    )
