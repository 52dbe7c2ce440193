"""Helium 1 (Kyutai 2025): Llama whose rotary embedding pairs neighbors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class HeliumForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Helium's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Helium's config.json."""
        common = reader.whole_heads(
            "HeliumForCausalLM",
            default_eos=2,
            default_positions=4096,
            default_kv_heads=20,
            default_head_dim=128,
        )
        rope = read_rope(
            reader,
            common,
            default_theta=100000.0,
            interleaved=True,
        )
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-8, rope=rope),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("attention_bias", default=False),
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
