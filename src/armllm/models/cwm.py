"""CWM (FAIR CodeGen team 2025): Llama 3 with windows in three of four layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader

# the class's default, for a config.json that says nothing of rotary embedding
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class CwmForCausalLM(LlamaForCausalLM):
    """Llama's decoder with CWM's configuration."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """CWM's config.json."""
        common = reader.common(
            "CwmForCausalLM", default_positions=131072, default_kv_heads=8, default_head_dim=128
        )
        num_layers = common["num_layers"]
        if not reader.has("eos_token_id"):
            ends = {128001, 128008, 128009}
            common["eos_token_ids"] = frozenset(ends if max(ends) < common["vocab_size"] else ())
        rope = read_rope(
            reader,
            common,
            default_theta=1e6,
            missing=LLAMA3,
        )
        default = [SLIDING if index % 4 else FULL for index in range(num_layers)]
        kinds = read_layer_types(reader, num_layers, default)
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope),
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 8192)),
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
