"""GLM-4 (Team GLM 2024): half of each head turns, by pairs of neighbors; gate and up are one matrix.

GLM-4-0414 (Glm4ForCausalLM) also normalizes each branch after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.gemma2 import NormAroundDecoderLayer
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.phi3 import Phi3DecoderLayer
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader

END_TOKENS = (151329, 151336, 151338)


class GlmDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with gate and up in one matrix."""

    load_mlp = staticmethod(Phi3DecoderLayer.load_mlp)


class Glm4DecoderLayer(NormAroundDecoderLayer):
    """GLM-4's layer with a norm after each branch."""

    load_mlp = staticmethod(Phi3DecoderLayer.load_mlp)
    norm_names = (
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    )


class GlmForCausalLM(LlamaForCausalLM):
    """Llama's decoder with GLM's layers."""

    layer_class: type[LlamaDecoderLayer] = GlmDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """The config.json of GLM-4."""
        return read_glm(reader, "GlmForCausalLM")


class Glm4ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with GLM-4-0414's layers."""

    layer_class = Glm4DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """The config.json of GLM-4-0414."""
        return read_glm(reader, "Glm4ForCausalLM")


def read_glm(reader: ConfigReader, architecture: str) -> LlamaConfig:
    """The configuration of either, with the defaults of their classes in transformers."""
    common = reader.common(architecture, default_positions=131072, default_kv_heads=2, default_head_dim=128)
    if reader.get("eos_token_id", None) is None:  # null too; a small vocabulary need not have them
        found = frozenset(token for token in END_TOKENS if token < common["vocab_size"])
        common["eos_token_ids"] = found
    rope = read_rope(
        reader,
        common,
        default_partial=0.5,
        interleaved=True,
    )
    return LlamaConfig(
        **llama_fields(reader, common, default_eps=1.5625e-7, rope=rope),
        windows=same_everywhere(reader, common["num_layers"], None),
        qkv_bias=reader.boolean("attention_bias", default=True),
    )
