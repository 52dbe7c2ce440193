"""OLMo 3 (OLMo Team 2025): OLMo 2 with windows in three of four layers, and two rotary embeddings."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.gemma3 import LocalRotary, read_ropes
from armllm.models.llama import LlamaConfig, llama_fields
from armllm.models.olmo2 import Olmo2ForCausalLM
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.rotary import RopeParameters

THETA = 500000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Olmo3Config(LlamaConfig):
    """local_rope: of the layers that ``kinds`` calls sliding_attention; ``rope`` is the others'."""

    kinds: tuple[str, ...]
    local_rope: RopeParameters


class Olmo3ForCausalLM(LocalRotary, Olmo2ForCausalLM):
    """OLMo 2's decoder with windows."""

    @staticmethod
    def read_config(reader: ConfigReader) -> Olmo3Config:
        """OLMo 3's config.json. rope_theta and rope_scaling are of the layers without a window."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("Olmo3ForCausalLM", default_eos=50279, default_positions=2048)
        num_layers = common["num_layers"]
        rope, local_rope = read_ropes(
            reader,
            common["head_dim"],
            common["max_position_embeddings"],
            thetas=(("rope_theta", THETA), (None, THETA)),
        )
        default = [SLIDING if (index + 1) % 4 else FULL for index in range(num_layers)]
        kinds = read_layer_types(reader, num_layers, default)
        return Olmo3Config(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope),
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 4096)),
            kinds=tuple(kinds),
            local_rope=local_rope,
            qkv_bias=bias,
            output_bias=bias,
        )
