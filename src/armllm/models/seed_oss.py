"""Seed-OSS (ByteDance Seed 2025): Llama with other biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class SeedOssForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Seed-OSS's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Seed-OSS's config.json."""
        common = reader.common(
            "SeedOssForCausalLM",
            default_eos=2,
            default_positions=524288,
            default_kv_heads=8,
            default_head_dim=128,
        )
        return LlamaConfig(
            **llama_fields(reader, common),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("attention_bias", default=True),
            output_bias=reader.boolean("attention_out_bias", default=False),
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
