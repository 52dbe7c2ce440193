"""OLMoE (Muennighoff et al. 2024): experts in every layer; query and key normalized over all heads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import MoEConfig, load_moe, routing_fields
from armllm.models.olmo2 import Olmo2Attention
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import MoE
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlmoeConfig(MoEConfig):
    """clip_qkv: greatest absolute value of queries, keys and values, if there is one."""

    clip_qkv: float | None


class OlmoeAttention(Olmo2Attention):
    """Query, key and value may also be clipped."""

    def __init__(
        self, config: OlmoeConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.clip = config.clip_qkv

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        parts = super().project(x)
        if self.clip is not None:
            for part in parts:
                part.clamp_(-self.clip, self.clip)
        return parts


class OlmoeDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with OLMoE's attention and experts."""

    attention_class = OlmoeAttention

    @staticmethod
    def load_mlp(config: OlmoeConfig, weights: Weights, index: int) -> MoE:  # noqa: ARG004
        """Experts."""
        return load_moe(config, weights.scope("mlp"), config.intermediate_size)


class OlmoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with OLMoE's layers."""

    layer_class = OlmoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> OlmoeConfig:
        """OLMoE's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("OlmoeForCausalLM", default_eos=50279, default_positions=4096)
        num_experts = reader.integer("num_experts", reader.get("num_local_experts", 64))
        return OlmoeConfig(
            **llama_fields(reader, common, default_eps=1e-5),
            **routing_fields(reader, num_experts=num_experts, per_token=8),
            windows=same_everywhere(reader, common["num_layers"], None),
            normalize=reader.boolean("norm_topk_prob", default=False),
            clip_qkv=reader.optional_number("clip_qkv", None),
            qkv_bias=bias,
            output_bias=bias,
        )
