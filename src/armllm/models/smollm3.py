"""SmolLM3 (Bakouch et al. 2025): Llama whose every fourth layer does without positions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmolLM3Config(LlamaConfig):
    """rotates: per layer, whether it knows positions."""

    rotates: tuple[bool, ...]


class SmolLM3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with layers that don't rotate."""

    config: SmolLM3Config

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """None for layers without positions."""
        return self.rotary if self.config.rotates[index] else None

    @staticmethod
    def read_config(reader: ConfigReader) -> SmolLM3Config:
        """SmolLM3's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common(
            "SmolLM3ForCausalLM",
            default_eos=128001,
            default_positions=32768,
            default_kv_heads=4,
            default_tied=True,
        )
        num_layers = common["num_layers"]
        interval = reader.integer("no_rope_layer_interval", 4)
        rotates = reader.get("no_rope_layers", [int((i + 1) % interval != 0) for i in range(num_layers)])
        if (
            not isinstance(rotates, list)
            or len(rotates) < num_layers
            or any(rotate not in (0, 1) for rotate in rotates)
        ):
            raise reader.error(f"no_rope_layers must be a list of {num_layers} times 0 (no positions) or 1")
        in_use = reader.boolean("use_sliding_window", default=False)
        window = reader.optional_integer("sliding_window", None)
        if not in_use:
            window = None
        default = [SLIDING if window and not rotate else FULL for rotate in rotates[:num_layers]]
        kinds = read_layer_types(reader, num_layers, default)
        return SmolLM3Config(
            **llama_fields(reader, common, default_theta=2e6),
            windows=by_layer(reader, kinds, window),
            rotates=tuple(map(bool, rotates[:num_layers])),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
