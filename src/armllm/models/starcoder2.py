"""StarCoder2 (Lozhkov et al. 2024): Llama with layer norms, biases and a plain feed-forward part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.norm import LayerNorm, RMSNorm
from armllm.models.llama import LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP


class LayerNormDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with layer norms."""

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> RMSNorm | LayerNorm:
        """One of the norms."""
        return LayerNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps)


class Starcoder2DecoderLayer(LayerNormDecoderLayer):
    """A plain feed-forward part."""

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("c_fc", "c_proj"))


class Starcoder2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with StarCoder2's layers."""

    layer_class = Starcoder2DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """StarCoder2's config.json."""
        bias = reader.boolean("use_bias", default=True)
        common = reader.common(
            "Starcoder2ForCausalLM",
            default_eos=50256,
            default_positions=4096,
            default_kv_heads=2,
            default_tied=True,
        )
        window = reader.optional_integer("sliding_window", None)
        fields = llama_fields(
            reader,
            common,
            default_eps=1e-5,
            eps_name="norm_epsilon",
            activation=("hidden_act", "gelu_pytorch_tanh"),
        )
        return LlamaConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], window),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=bias,
        )
