"""dots.llm1 (rednote-hilab 2025): Qwen3's attention with windows, GLM-4.5's experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.glm4_moe import GroupedMoEConfig, GroupedMoEDecoderLayer, read_routing, sparse_fields
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.qwen2 import upper_windows
from armllm.models.qwen3 import Qwen3Attention

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class Dots1DecoderLayer(GroupedMoEDecoderLayer):
    """Qwen3's attention and experts."""

    attention_class = Qwen3Attention


class Dots1ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = Dots1DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> GroupedMoEConfig:
        """The config.json of dots.llm1."""
        reader.only("scoring_func", "noaux_tc", "sigmoid")
        reader.only("topk_method", "noaux_tc")
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("Dots1ForCausalLM", default_positions=2048, default_kv_heads=32)
        window = reader.optional_integer("sliding_window", 4096)
        routing = read_routing(
            reader, num_experts=None, per_token=None, groups=(1, 1), factor=1.0, sigmoid=True
        )
        routing = dataclasses.replace(routing, normalize=reader.boolean("norm_topk_prob", default=False))
        return GroupedMoEConfig(
            **llama_fields(reader, common, default_intermediate=10944),
            **sparse_fields(reader, routing, size=1408, shared=None, first=0),
            windows=upper_windows(reader, common["num_layers"], window, 62),
            qkv_bias=bias,
            output_bias=bias,
        )
