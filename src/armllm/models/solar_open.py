"""Solar Open (Upstage 2026): GLM-4.5's experts in every layer around Llama's attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.glm4_moe import GroupedMoEConfig, GroupedMoEDecoderLayer, read_routing, sparse_fields
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader

SIZES = {"hidden_size": 4096, "num_hidden_layers": 48, "vocab_size": 196608}


class SolarOpenForCausalLM(LlamaForCausalLM):
    """Llama's decoder with experts."""

    layer_class = GroupedMoEDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GroupedMoEConfig:
        """Solar Open's config.json."""
        reader.only("first_k_dense_replace", 0)
        common = reader.common(
            "SolarOpenForCausalLM",
            default_positions=131072,
            default_heads=64,
            default_kv_heads=8,
            default_head_dim=128,
            default_sizes=SIZES,
        )
        routing = read_routing(reader, num_experts=128, per_token=8, groups=(1, 1), factor=1.0, sigmoid=True)
        sparse = sparse_fields(reader, routing, size=1280, shared=1, first=0)
        return GroupedMoEConfig(
            **llama_fields(
                reader,
                common,
                default_eps=1e-5,
                default_theta=1e6,
                default_intermediate=sparse["moe_intermediate_size"],
            ),
            **sparse,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("attention_bias", default=False),
        )
