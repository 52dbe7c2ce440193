"""Mistral 7B and its kin (Jiang et al. 2023): Llama without biases, maybe with a sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class MistralForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Mistral's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Mistral's config.json."""
        common = reader.common(
            "MistralForCausalLM", default_eos=2, default_positions=131072, default_kv_heads=8
        )
        window = reader.optional_integer("sliding_window", 4096)
        return LlamaConfig(
            **llama_fields(reader, common), windows=same_everywhere(reader, common["num_layers"], window)
        )
