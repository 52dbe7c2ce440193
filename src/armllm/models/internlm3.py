"""InternLM3 (Shanghai AI Laboratory 2025): Llama with its own names of biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class InternLM3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with InternLM3's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """InternLM3's config.json: ``bias`` is that of all products but query, key and value."""
        common = reader.common(
            "InternLM3ForCausalLM",
            default_eos=2,
            default_positions=32768,
            default_kv_heads=2,
            default_head_dim=None if reader.has("head_dim") else 128,
        )
        bias = reader.boolean("bias", default=reader.boolean("mlp_bias", default=False))
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, default_intermediate=10240),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=reader.boolean("qkv_bias", default=reader.boolean("attention_bias", default=False)),
            output_bias=bias,
            mlp_bias=bias,
        )
