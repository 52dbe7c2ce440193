"""Mistral 7B and its kin (Jiang et al. 2023): Llama without biases, maybe with windows in its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class MistralForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Mistral's configuration; layer_types count, as in vLLM and in Ministral."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> LlamaConfig:
        """Mistral's config.json."""
        common = reader.common(cls.__name__, default_eos=2, default_positions=131072, default_kv_heads=8)
        window = reader.optional_integer("sliding_window", 4096)
        num_layers = common["num_layers"]
        kinds = read_layer_types(reader, num_layers, [FULL if window is None else SLIDING] * num_layers)
        return LlamaConfig(**llama_fields(reader, common), windows=by_layer(reader, kinds, window))


class MinistralForCausalLM(MistralForCausalLM):
    """Ministral 8B (2024), which has layer_types."""
