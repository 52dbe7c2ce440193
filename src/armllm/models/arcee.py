"""Arcee's AFM (2025): Llama with a plain feed-forward part of squared ReLU (So et al. 2021)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP


class ArceeDecoderLayer(LlamaDecoderLayer):
    """A plain feed-forward part."""

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("up_proj", "down_proj"))


class ArceeForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Arcee's layers."""

    layer_class = ArceeDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Arcee's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("ArceeForCausalLM", default_eos=128001, default_positions=4096)
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, activation=("hidden_act", "relu2", PLAIN)),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
