"""Phi-3.5-MoE (Abdin et al. 2024): Mixtral with layer norms and sparse mixing of two experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.layers.linear import as_float32, load_linear
from armllm.layers.moe import MoE, load_experts
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.mixtral import MoEConfig, moe_block, routing_fields
from armllm.models.rope import read_rope
from armllm.models.starcoder2 import LayerNormDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhimoeConfig(MoEConfig):
    """jitter: half the relative distance to the best score from which on an expert counts nothing."""

    jitter: float


class SparseMixer:
    """Chooses two experts (Liu et al. 2024, SparseMixer-v2).

    The weight of each is its softmax among the experts near it: the second's without the first, so that the
    two need not sum to one.
    """

    def __init__(self, weights: Weights, config: PhimoeConfig) -> None:
        name = "gate" if weights.has("gate.weight") else "router"  # transformers 5 calls it router
        self.linear = load_linear(weights, {name: config.num_experts}, config.hidden_size, bias=False)
        self.distance = 2 * config.jitter

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids int64 and weights fp32, both ``[T, 2]``."""
        scores = as_float32(self.linear(x))
        best, expert_ids = scores.topk(2, dim=-1)
        first = expert_ids[:, :1]
        others = scores.scatter(1, first, -torch.inf)
        sizes = scores.abs()
        expert_weights = [
            self._share(among, best[:, i : i + 1], sizes, expert_ids[:, i : i + 1])
            for i, among in enumerate((scores, others))
        ]
        return expert_ids, torch.cat(expert_weights, dim=1)

    def _share(self, scores: Tensor, best: Tensor, sizes: Tensor, expert_ids: Tensor) -> Tensor:
        """Softmax, at ``expert_ids[T, 1]``, of those scores that are near the best."""
        far = (best - scores) / sizes.clamp(min=best) > self.distance
        return scores.masked_fill(far, -torch.inf).softmax(dim=-1).gather(1, expert_ids)


class PhimoeDecoderLayer(LayerNormDecoderLayer):
    """Layer norms and experts."""

    @staticmethod
    def load_mlp(config: PhimoeConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """Experts w1 (gate), w3 (up), w2 (down)."""
        block = moe_block(weights)
        experts = load_experts(
            block,
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            names=("w1", "w3", "w2"),
        )
        return MoE(SparseMixer(block, config), experts)


class PhimoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Phi-3.5-MoE's layers."""

    layer_class = PhimoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> PhimoeConfig:
        """Phi-3.5-MoE's config.json."""
        common = reader.common(
            "PhimoeForCausalLM", default_eos=2, default_positions=131072, default_kv_heads=8
        )
        rope = read_rope(
            reader,
            common,
            default_theta=1e6,
        )
        if rope.rope_type not in ("default", "longrope"):
            raise reader.error(
                f"rope_type {rope.rope_type!r} is not supported for Phi-3.5-MoE, only longrope"
            )
        reader.only("num_experts_per_tok", 2)
        bias = reader.boolean("attention_bias", default=False)
        return PhimoeConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope, default_intermediate=6400),
            **routing_fields(reader, num_experts=reader.integer("num_local_experts", 16), per_token=2),
            windows=same_everywhere(
                reader, common["num_layers"], reader.optional_integer("sliding_window", None)
            ),
            normalize=False,
            qkv_bias=bias,
            output_bias=bias,
            jitter=reader.number("router_jitter_noise", 0.01),
            head_bias=reader.boolean("lm_head_bias", default=False),
        )
