"""Qwen1.5-MoE and Qwen2-MoE (Qwen Team 2024): Qwen2 with many small experts and one that all tokens share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.linear import load_linear
from armllm.layers.mlp import GatedMLP
from armllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import MoEConfig, load_moe, routing_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import MoE


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenMoEConfig(MoEConfig):
    """sparse: per layer, whether it has experts. shared_size: of the expert for all tokens; 0: none."""

    moe_intermediate_size: int
    shared_size: int
    sparse: tuple[bool, ...]


class SharedExpertMoE:
    """moe(x) + sigmoid(gate(x)) * shared(x)."""

    def __init__(self, config: QwenMoEConfig, weights: Weights, moe: MoE) -> None:
        self.moe = moe
        self.shared = GatedMLP(
            weights.scope("shared_expert"),
            config.hidden_size,
            config.shared_size,
            activation=config.activation,
        )
        self.gate = load_linear(weights, {"shared_expert_gate": 1}, config.hidden_size, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return torch.addcmul(self.moe(x), torch.sigmoid(self.gate(x)), self.shared(x))


class QwenMoEDecoderLayer(LlamaDecoderLayer):
    """Llama's layer, with experts where the configuration says so."""

    @staticmethod
    def load_mlp(config: QwenMoEConfig, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts, maybe with a shared one, or an ordinary feed-forward part."""
        if not config.sparse[index]:
            return LlamaDecoderLayer.load_mlp(config, weights, index)
        scope = weights.scope("mlp")
        moe = load_moe(config, scope, config.moe_intermediate_size)
        return SharedExpertMoE(config, scope, moe) if config.shared_size else moe


class Qwen2MoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Qwen2-MoE's layers."""

    layer_class = QwenMoEDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> QwenMoEConfig:
        """Qwen2-MoE's config.json; here the even layers below max_window_layers are those with the window."""
        common = reader.common("Qwen2MoeForCausalLM", default_positions=32768, default_kv_heads=16)
        num_layers = common["num_layers"]
        in_use = reader.boolean("use_sliding_window", default=False)
        window = reader.optional_integer("sliding_window", 4096) if in_use else None
        last = reader.get("max_window_layers", 28)
        if not isinstance(last, int) or isinstance(last, bool):
            raise reader.error(f"max_window_layers must be a number of layers, not {last!r}")
        default = [SLIDING if in_use and i < last and i % 2 == 0 else FULL for i in range(num_layers)]
        kinds = read_layer_types(reader, num_layers, default)
        reader.has("sliding_window")
        return QwenMoEConfig(
            **llama_fields(reader, common, default_intermediate=5632),
            **routing_fields(reader, num_experts=reader.integer("num_experts", 60), per_token=4),
            **sparse_fields(reader, num_layers, default_size=1408),
            windows=by_layer(reader, kinds, window),
            shared_size=reader.integer("shared_expert_intermediate_size", 5632),
            qkv_bias=reader.boolean("qkv_bias", default=True),
        )


def sparse_fields(reader: ConfigReader, num_layers: int, *, default_size: int) -> dict[str, Any]:
    """Which layers have experts: every decoder_sparse_step-th, without mlp_only_layers."""
    step = reader.integer("decoder_sparse_step", 1)
    dense = reader.get("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise reader.error(f"mlp_only_layers must be a list of layers, not {dense!r}")
    return {
        "moe_intermediate_size": reader.integer("moe_intermediate_size", default_size),
        "sparse": tuple((i + 1) % step == 0 and i not in dense for i in range(num_layers)),
        "normalize": reader.boolean("norm_topk_prob", default=False),
    }
