"""Jais 2 (Inception and MBZUAI 2025): layer norms, and a plain feed-forward part of squared ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.activation import PLAIN
from armllm.models.arcee import ArceeDecoderLayer
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.starcoder2 import LayerNormDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader

SIZES = {"hidden_size": 3328, "num_hidden_layers": 32, "vocab_size": 150272}


class Jais2DecoderLayer(LayerNormDecoderLayer, ArceeDecoderLayer):
    """A plain feed-forward part between layer norms."""


class Jais2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    layer_class = Jais2DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """The config.json of Jais 2."""
        common = reader.common(
            "Jais2ForCausalLM",
            default_eos=150024,
            default_positions=8192,
            default_heads=26,
            default_sizes=SIZES,
        )
        bias = reader.boolean("attention_bias", default=True)
        fields = llama_fields(
            reader,
            common,
            default_eps=1e-5,
            eps_name="layer_norm_eps",
            activation=("hidden_act", "relu2", PLAIN),
            default_intermediate=26624,
        )
        return LlamaConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=True),
        )
