"""Ministral 8B (2024): Mistral with windows in some of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class MinistralForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Ministral's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Ministral's config.json."""
        common = reader.common(
            "MinistralForCausalLM", default_eos=2, default_positions=131072, default_kv_heads=8
        )
        window = reader.optional_integer("sliding_window", 4096)
        num_layers = common["num_layers"]
        kinds = read_layer_types(reader, num_layers, [FULL if window is None else SLIDING] * num_layers)
        return LlamaConfig(**llama_fields(reader, common), windows=by_layer(reader, kinds, window))
