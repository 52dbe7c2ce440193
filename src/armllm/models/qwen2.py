"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on query, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


def qwen_windows(reader: ConfigReader, num_layers: int, default_first: int = 28) -> tuple[int | None, ...]:
    """Layers from max_window_layers on have the window, if it is in use."""
    in_use = reader.boolean("use_sliding_window", default=False)
    window = reader.optional_integer("sliding_window", 4096) if in_use else None
    reader.has("sliding_window")
    return upper_windows(reader, num_layers, window, default_first)


def upper_windows(
    reader: ConfigReader, num_layers: int, window: int | None, default_first: int
) -> tuple[int | None, ...]:
    """Layers from max_window_layers on have the window, if layer_types does not say else."""
    first = reader.get("max_window_layers", default_first)
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        raise reader.error(f"max_window_layers must be a number of layers, not {first!r}")
    default = [FULL if window is None or layer < first else SLIDING for layer in range(num_layers)]
    return by_layer(reader, read_layer_types(reader, num_layers, default), window)


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Qwen2's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Qwen2's config.json."""
        common = reader.common("Qwen2ForCausalLM", default_positions=32768, default_kv_heads=32)
        return LlamaConfig(
            **llama_fields(reader, common), windows=qwen_windows(reader, common["num_layers"]), qkv_bias=True
        )
