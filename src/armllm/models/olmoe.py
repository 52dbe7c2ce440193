"""OLMoE (Muennighoff et al. 2024): experts in every layer; query and key normalized over all heads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import MoEConfig, load_moe, routing_fields
from armllm.models.olmo import ClippedAttention
from armllm.models.olmo2 import Olmo2Attention
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import MoE


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlmoeConfig(MoEConfig):
    """clip_qkv: greatest absolute value of queries, keys and values, if there is one."""

    clip_qkv: float | None


class OlmoeAttention(ClippedAttention, Olmo2Attention):
    """OLMo 2's, of which query, key and value may be clipped."""


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
        common = reader.common("OlmoeForCausalLM", default_eos=50279, default_positions=4096)
        return OlmoeConfig(
            **olmoe_fields(reader, common, default_eps=1e-5, theta=10000.0, num_experts=64, per_token=8),
            clip_qkv=reader.optional_number("clip_qkv", None),
        )


def olmoe_fields(
    reader: ConfigReader,
    common: dict[str, Any],
    *,
    default_eps: float,
    theta: float,
    num_experts: int,
    per_token: int,
) -> dict[str, Any]:
    """The fields of `MoEConfig`; the defaults are those of the family's class."""
    bias = reader.boolean("attention_bias", default=False)
    number = reader.integer("num_experts", reader.get("num_local_experts", num_experts))
    return {
        **llama_fields(reader, common, default_eps=default_eps, default_theta=theta),
        **routing_fields(reader, num_experts=number, per_token=per_token),
        "windows": same_everywhere(reader, common["num_layers"], None),
        "normalize": reader.boolean("norm_topk_prob", default=False),
        "qkv_bias": bias,
        "output_bias": bias,
    }
