"""Qwen3-MoE (Yang et al. 2025): Qwen3 with many small experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.mixtral import routing_fields
from armllm.models.qwen2_moe import QwenMoEConfig, QwenMoEDecoderLayer, sparse_fields
from armllm.models.qwen3 import Qwen3Attention
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class Qwen3MoeDecoderLayer(QwenMoEDecoderLayer):
    """Qwen3's attention and experts."""

    attention_class = Qwen3Attention


class Qwen3MoeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Qwen3-MoE's layers."""

    layer_class = Qwen3MoeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> QwenMoEConfig:
        """Qwen3-MoE's config.json; here all layers have the window, if it is in use."""
        reader.only("use_qk_norm", True)
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("Qwen3MoeForCausalLM", default_positions=32768, default_kv_heads=4)
        in_use = reader.boolean("use_sliding_window", default=False)
        window = reader.optional_integer("sliding_window", 4096)
        # transformers writes num_local_experts, Qwen's own files num_experts
        num_experts = reader.integer("num_local_experts", reader.get("num_experts", 128))
        return QwenMoEConfig(
            **llama_fields(reader, common, default_intermediate=6144),
            **routing_fields(reader, num_experts=num_experts, per_token=8),
            **sparse_fields(reader, common["num_layers"], default_size=768),
            windows=same_everywhere(reader, common["num_layers"], window if in_use else None),
            shared_size=0,
            qkv_bias=bias,
            output_bias=bias,
        )
