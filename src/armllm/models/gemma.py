"""Gemma 1 (Gemma Team 2024): Llama with scaled embeddings, large heads and norms stored around zero."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.models.gemma2 import Gemma2DecoderLayer, Gemma2ForCausalLM, GemmaConfig
from armllm.models.llama import LlamaDecoderLayer, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class GemmaDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with Gemma's norms."""

    load_norm = staticmethod(Gemma2DecoderLayer.load_norm)


class GemmaForCausalLM(Gemma2ForCausalLM):
    """Llama's decoder with Gemma's layers and scaled embeddings; no score is capped."""

    layer_class = GemmaDecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GemmaConfig:
        """Gemma 1's config.json."""
        common = reader.common(
            cls.__name__,
            default_eos=1,
            default_positions=8192,
            default_kv_heads=16,
            default_head_dim=256,
            default_tied=True,
        )
        reader.only("use_bidirectional_attention", False)
        bias = reader.boolean("attention_bias", default=False)
        config = GemmaConfig(
            **llama_fields(reader, common, activation=("hidden_act", "gelu_pytorch_tanh")),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            attention_scale=common["head_dim"] ** -0.5,
            attention_soft_cap=None,
            final_soft_cap=None,
            norm_offset=1.0,
        )
        # the first files say gelu, and were trained with tanh
        legacy = config.activation == "gelu"
        return dataclasses.replace(config, activation="gelu_pytorch_tanh") if legacy else config
