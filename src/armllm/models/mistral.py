"""Mistral 7B and its kin (Jiang et al. 2023): Llama without biases, maybe with a sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from armllm.models.config import ConfigReader


class MistralForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Mistral's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Mistral's config.json."""
        reader.only("hidden_act", "silu")
        window = None
        if reader.values.get("sliding_window", 4096) is not None:
            window = reader.integer("sliding_window", 4096)
        common = reader.common(
            "MistralForCausalLM",
            default_eos=2,
            default_positions=131072,
            default_kv_heads=8,
            sliding_window=window,
        )
        return LlamaConfig(
            **common,
            intermediate_size=reader.integer("intermediate_size"),
            rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
            rope=reader.rope(common["max_position_embeddings"]),
            qkv_bias=False,
            output_bias=False,
            mlp_bias=False,
        )
