"""Nemotron, Minitron (Parmar et al. 2024): layer norms of weights below 1, a plain feed-forward part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.layers.norm import LayerNorm
from armllm.models.arcee import ArceeDecoderLayer
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


class NemotronConfig(LlamaConfig):
    """norm_offset: what is added to a norm's weight."""

    norm_offset = 1.0


class NemotronDecoderLayer(ArceeDecoderLayer):
    """A plain feed-forward part between layer norms."""

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> LayerNorm:
        """One of the norms."""
        norm = LayerNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps)
        if not norm.weight.is_meta:  # where torch would import its compiler, in seconds
            norm.weight = norm.weight + config.norm_offset
        return norm


class NemotronForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Nemotron's layers."""

    layer_class = NemotronDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> NemotronConfig:
        """Nemotron's config.json."""
        share = reader.optional_number("rope_percent", None)  # in the first checkpoints
        if share is not None:
            reader.only("partial_rotary_factor", share)
            reader = reader.changed(partial_rotary_factor=share)
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("NemotronForCausalLM", default_eos=3, default_positions=4096)
        rope = read_rope(
            reader,
            common,
            default_partial=0.5,
        )
        fields = llama_fields(
            reader,
            common,
            default_eps=1e-5,
            eps_name="norm_eps",
            activation=("hidden_act", "relu2", PLAIN),
            rope=rope,
        )
        return NemotronConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )
