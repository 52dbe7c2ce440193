"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.moe import MoE, load_experts
from armllm.layers.routing import Router
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights

MAX_EXPERTS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEConfig(LlamaConfig):
    """How tokens are sent to experts; normalize: the weights of those chosen sum to one."""

    num_experts: int
    num_experts_per_tok: int
    normalize: bool


class MixtralDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with experts."""

    @staticmethod
    def load_mlp(config: MoEConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """Experts w1 (gate), w3 (up), w2 (down)."""
        return load_moe(config, moe_block(weights), config.intermediate_size, names=("w1", "w3", "w2"))


class MixtralForCausalLM(LlamaForCausalLM):
    """Llama's decoder with experts."""

    layer_class = MixtralDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> MoEConfig:
        """Mixtral's config.json."""
        common = reader.common(
            "MixtralForCausalLM", default_eos=2, default_positions=131072, default_kv_heads=8
        )
        window = reader.optional_integer("sliding_window", None)
        return MoEConfig(
            **llama_fields(reader, common, default_eps=1e-5, default_theta=1e6),
            **routing_fields(reader, num_experts=reader.integer("num_local_experts", 8), per_token=2),
            windows=same_everywhere(reader, common["num_layers"], window),
            normalize=True,
        )


def routing_fields(
    reader: ConfigReader, *, num_experts: int, per_token: int | None, key: str = "num_experts_per_tok"
) -> dict[str, Any]:
    """num_experts and num_experts_per_tok, the second not above the first; ``key``: of the second."""
    if num_experts > MAX_EXPERTS:  # checked before anything is made per expert
        raise reader.error(f"{num_experts} experts per layer: no model has more than {MAX_EXPERTS}")
    routed = reader.integer(key, per_token)
    if routed > num_experts:
        raise reader.error(f"{key} {routed} is above the number of experts, {num_experts}")
    return {"num_experts": num_experts, "num_experts_per_tok": routed}


def moe_block(weights: Weights) -> Weights:
    """The tensors of router and experts; transformers 5 calls the block mlp."""
    block = weights.scope("block_sparse_moe", optional=True)
    return weights.scope("mlp") if block is weights else block


def load_moe(config: MoEConfig, weights: Weights, size: int, **options: Any) -> MoE:
    """Router and experts of one layer; ``options`` of `load_experts`."""
    router = Router(
        weights,
        config.hidden_size,
        config.num_experts,
        config.num_experts_per_tok,
        normalize=config.normalize,
    )
    experts = load_experts(
        weights, config.num_experts, config.hidden_size, size, activation=config.activation, **options
    )
    return MoE(router, experts)
