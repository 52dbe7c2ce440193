"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on query, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    from armllm.models.config import ConfigReader


def shortest_window(reader: ConfigReader) -> int | None:
    """The sliding window, if any layer has one: those listed, or those from max_window_layers on."""
    if not reader.boolean("use_sliding_window", default=False):
        return None
    num_layers = reader.integer("num_hidden_layers")
    first = reader.values.get("max_window_layers", 28)
    kinds = reader.get("layer_types", None)
    if kinds is None:
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(num_layers)]
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise reader.error(f"layer_types {min(unknown)!r} is not supported")
    return reader.integer("sliding_window", 4096) if "sliding_attention" in kinds else None


class Qwen2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Qwen2's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Qwen2's config.json."""
        reader.only("hidden_act", "silu")
        common = reader.common(
            "Qwen2ForCausalLM",
            default_positions=32768,
            default_kv_heads=32,
            sliding_window=shortest_window(reader),
        )
        return LlamaConfig(
            **common,
            intermediate_size=reader.integer("intermediate_size"),
            rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
            rope=reader.rope(common["max_position_embeddings"]),
            qkv_bias=True,
            output_bias=False,
            mlp_bias=False,
        )
