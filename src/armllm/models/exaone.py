"""EXAONE 3 and 3.5 (LG AI Research 2024): Llama with names of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.mlp import GatedMLP
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


class ExaoneAttention(LlamaAttention):
    """Llama's attention."""

    output_name = "out_proj"


class ExaoneDecoderLayer(LlamaDecoderLayer):
    """Llama's layer by other names."""

    attention_class = ExaoneAttention
    attention_name = "attn.attention"
    norm_names = ("ln_1", "ln_2")

    @staticmethod
    def load_mlp(config: LlamaConfig, weights: Weights, index: int) -> GatedMLP:  # noqa: ARG004
        """Gate, up and down are c_fc_0, c_fc_1 and c_proj."""
        return GatedMLP(
            weights.scope("mlp"),
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            names=("c_fc_0", "c_fc_1"),
            down="c_proj",
        )


class ExaoneForCausalLM(LlamaForCausalLM):
    """Llama's decoder with EXAONE's layers."""

    layer_class = ExaoneDecoderLayer
    names = ("wte", "h", "ln_f")

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("transformer", optional=True)

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """EXAONE's config.json, with the defaults of the class that its authors publish beside it."""
        common = reader.common(
            "ExaoneForCausalLM",
            default_eos=2,
            default_positions=2048,
            default_tied=True,
            default_sizes={"num_hidden_layers": reader.integer("num_layers", 32)},
        )
        reader.only("num_layers", common["num_layers"])
        return LlamaConfig(
            **llama_fields(
                reader,
                common,
                eps_name="layer_norm_epsilon",
                activation=("activation_function", "silu"),
                default_intermediate=4 * common["hidden_size"],
            ),
            windows=same_everywhere(reader, common["num_layers"], None),
        )
