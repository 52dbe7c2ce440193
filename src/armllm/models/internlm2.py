"""InternLM2 (Cai et al. 2024): Llama with one matrix for query, key and value, and names of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.mlp import GatedMLP
from armllm.models.falcon import GroupedAttention
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


class InternLM2Attention(GroupedAttention):
    """One matrix for query, key and value."""

    fused_name, output_name = "wqkv", "wo"


class InternLM2DecoderLayer(LlamaDecoderLayer):
    """Llama's layer by other names."""

    attention_class = InternLM2Attention
    attention_name = "attention"
    norm_names = ("attention_norm", "ffn_norm")

    @staticmethod
    def load_mlp(config: LlamaConfig, weights: Weights, index: int) -> GatedMLP:  # noqa: ARG004
        """Gate, up and down are w1, w3 and w2."""
        return GatedMLP(
            weights.scope("feed_forward"),
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            names=("w1", "w3"),
            down="w2",
        )


class InternLM2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with InternLM2's layers."""

    layer_class = InternLM2DecoderLayer
    names = ("tok_embeddings", "layers", "norm")
    head_name = "output"

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """InternLM2's config.json, with the defaults of the class that its authors publish beside it."""
        common = reader.common("InternLM2ForCausalLM", default_eos=2, default_positions=2048)
        bias = reader.boolean("bias", default=True)
        return LlamaConfig(
            **llama_fields(reader, common),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
        )
