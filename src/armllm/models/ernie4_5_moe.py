"""ERNIE 4.5 with experts (ERNIE Team 2025): chosen by softmax and a bias, beside shared ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.layers.linear import as_float32
from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import MoE, load_experts
from armllm.models.ernie4_5 import Ernie4_5ForCausalLM, ernie_fields
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer
from armllm.models.mixtral import routing_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ernie4_5MoeConfig(LlamaConfig):  # noqa: N801 - the architecture's name
    """sparse: per layer, whether it has experts. shared_size: of the expert for all tokens; 0: none."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_size: int
    smallest_sum: float
    sparse: tuple[bool, ...]


class ErnieRouter:
    """Chooses experts in fp32 by softmax and a bias; their weights are the softmax, divided by its sum."""

    def __init__(self, config: Ernie4_5MoeConfig, weights: Weights) -> None:
        exact = weights.in_dtype(torch.float32)
        self.weight = exact.take("gate.weight", config.num_experts, config.hidden_size)
        self.bias = exact.take("moe_statics.e_score_correction_bias", 1, config.num_experts)
        self.per_token = config.num_experts_per_tok
        self.smallest_sum = config.smallest_sum

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids int64 and weights fp32, both ``[T, num_experts_per_tok]``."""
        scores = torch.nn.functional.linear(as_float32(x), self.weight).softmax(dim=-1)
        expert_ids = (scores + self.bias).topk(self.per_token)[1]
        expert_weights = scores.gather(1, expert_ids)
        return expert_ids, expert_weights / expert_weights.sum(dim=-1, keepdim=True).clamp(self.smallest_sum)


class ErnieMoE:
    """experts(x) + shared(x)."""

    def __init__(self, config: Ernie4_5MoeConfig, weights: Weights) -> None:
        size, hidden_size = config.moe_intermediate_size, config.hidden_size
        experts = load_experts(weights, config.num_experts, hidden_size, size, activation=config.activation)
        self.moe = MoE(ErnieRouter(config, weights), experts)
        self.shared = GatedMLP(
            weights.scope("shared_experts"),
            hidden_size,
            config.shared_size,
            activation=config.activation,
            bias=config.mlp_bias,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return self.moe(x).add_(self.shared(x))


class ErnieMoEDecoderLayer(LlamaDecoderLayer):
    """Llama's layer, with experts where the configuration says so."""

    @staticmethod
    def load_mlp(config: Ernie4_5MoeConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts with shared ones, or an ordinary feed-forward part."""
        if not config.sparse[index]:
            return LlamaDecoderLayer.load_mlp(config, weights, index)
        return ErnieMoE(config, weights.scope("mlp"))


class Ernie4_5_MoeForCausalLM(Ernie4_5ForCausalLM):  # noqa: N801 - the architecture's name
    """ERNIE's decoder with experts."""

    layer_class = ErnieMoEDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> Ernie4_5MoeConfig:
        """ERNIE's config.json."""
        fields = ernie_fields(reader, "Ernie4_5_MoeForCausalLM", default_kv_heads=4, default_head_dim=None)
        number = reader.integer("moe_num_experts", reader.get("num_experts", 64))
        key = "num_experts_per_tok" if reader.has("num_experts_per_tok") else "moe_k"
        size = reader.integer("moe_intermediate_size", 1536)
        return Ernie4_5MoeConfig(
            **fields,
            head_bias=fields["qkv_bias"],
            **routing_fields(reader, num_experts=number, per_token=6, key=key),
            moe_intermediate_size=size,
            shared_size=size * reader.integer("moe_num_shared_experts", 2),
            smallest_sum=reader.number("moe_norm_min", 1e-12),
            sparse=_sparse_layers(reader, fields["num_layers"]),
        )


def _sparse_layers(reader: ConfigReader, num_layers: int) -> tuple[bool, ...]:
    """Every moe_layer_interval-th from one layer to another, which -1 makes the last."""
    first = reader.count("moe_layer_start_index", 1)
    last = reader.get("moe_layer_end_index", -1)
    last = num_layers - 1 if last == -1 else reader.count("moe_layer_end_index", -1)
    interval = reader.integer("moe_layer_interval", 1)
    return tuple((i + 1) % interval == 0 and first <= i <= last for i in range(num_layers))
