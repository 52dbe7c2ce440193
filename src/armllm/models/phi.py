"""Phi-1, 1.5 and 2 (Gunasekar et al. 2023): branches side by side, biases, a part of each head turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.activation import PLAIN
from armllm.layers.norm import LayerNorm
from armllm.models.llama import LlamaAttention, LlamaForCausalLM, llama_fields, plain_mlp
from armllm.models.rope import read_rope
from armllm.models.stablelm import ParallelConfig, ParallelDecoderLayer
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP
    from armllm.layers.rotary import RotaryEmbedding


class PhiAttention(LlamaAttention):
    """Queries and keys may have a layer norm, the same for all heads."""

    output_name = "dense"

    def __init__(
        self, config: ParallelConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        names = ("q_layernorm", "k_layernorm") if config.head_norms else ()
        self.head_norms = [
            LayerNorm(weights.scope(name), config.head_dim, config.rms_norm_eps) for name in names
        ]

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        query, key, value = super().project(x)
        if self.head_norms:
            query, key = (
                norm(heads.reshape(-1, heads.shape[-1])).view(heads.shape)
                for norm, heads in zip(self.head_norms, (query, key), strict=True)
            )
        return query, key, value


class PhiDecoderLayer(ParallelDecoderLayer):
    """x + attention(norm(x)) + mlp(norm(x))."""

    attention_class = PhiAttention

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("fc1", "fc2"))


class PhiForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Phi's layers."""

    layer_class = PhiDecoderLayer
    names = ("embed_tokens", "layers", "final_layernorm")

    @staticmethod
    def read_config(reader: ConfigReader) -> ParallelConfig:
        """Phi's config.json."""
        common = reader.whole_heads("PhiForCausalLM", default_eos=2, default_positions=2048)
        rope = read_rope(
            reader,
            common,
            default_partial=0.5,
        )
        fields = llama_fields(
            reader,
            common,
            default_eps=1e-5,
            eps_name="layer_norm_eps",
            rope=rope,
            activation=("hidden_act", "gelu_new", PLAIN),
            default_intermediate=8192,
        )
        return ParallelConfig(
            **fields,
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            head_bias=True,
            parallel=True,
            head_norms=reader.boolean("qk_layernorm", default=False),
        )
