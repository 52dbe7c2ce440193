"""EXAONE 4 (LG AI Research 2025): norms after the branches, normalized heads, positions only with windows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.olmo2 import NormAfterDecoderLayer
from armllm.models.qwen3 import Qwen3Attention
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exaone4Config(LlamaConfig):
    """rotates: per layer, whether it knows positions."""

    rotates: tuple[bool, ...]


class Exaone4DecoderLayer(NormAfterDecoderLayer):
    """Qwen3's attention between norms after the branches."""

    attention_class = Qwen3Attention


class Exaone4ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with EXAONE's layers."""

    config: Exaone4Config
    layer_class: type[LlamaDecoderLayer] = Exaone4DecoderLayer

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """None for layers without positions."""
        return self.rotary if self.config.rotates[index] else None

    @staticmethod
    def read_config(reader: ConfigReader) -> Exaone4Config:
        """EXAONE's config.json. Without a window anywhere, all layers know positions."""
        common = reader.common(
            "Exaone4ForCausalLM", default_eos=2, default_positions=2048, default_kv_heads=32
        )
        return Exaone4Config(**exaone_fields(reader, common))


def exaone_fields(reader: ConfigReader, common: dict[str, Any]) -> dict[str, Any]:
    """`Exaone4Config`'s fields."""
    num_layers = common["num_layers"]
    window = reader.optional_integer("sliding_window", 4096)
    default = [FULL] * num_layers
    if window is not None and reader.get("layer_types", None) is None:
        pattern = reader.integer("sliding_window_pattern", 4)
        default = [SLIDING if (index + 1) % pattern else FULL for index in range(num_layers)]
    reader.has("sliding_window_pattern")
    kinds = read_layer_types(reader, num_layers, default)
    return {
        **llama_fields(reader, common, default_eps=1e-5),
        "windows": by_layer(reader, kinds, window),
        "rotates": tuple(window is None or kind == SLIDING for kind in kinds),
    }
