"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024): Llama stored with fused matrices, stretched by LongRoPE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.mlp import GatedMLP
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


class Phi3Attention(LlamaAttention):
    """Query, key and value come from one matrix of the checkpoint."""

    by_heads = False
    fused_name = "qkv_proj"

    def qkv_parts(self) -> dict[str, int]:
        """The fused matrix."""
        return {self.fused_name: sum(self.sizes)}


class Phi3DecoderLayer(LlamaDecoderLayer):
    """Llama's layer with fused matrices."""

    attention_class = Phi3Attention

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> GatedMLP:  # noqa: ARG004
        """Gate and up come from one matrix, too."""
        return GatedMLP(
            weights.scope("mlp"),
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            names=("gate_up_proj",),
        )


class Phi3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Phi-3's layers."""

    layer_class = Phi3DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Phi-3's config.json; "su" and "yarn" are what early checkpoints call LongRoPE."""
        common = reader.common("Phi3ForCausalLM", default_eos=32000, default_positions=4096)
        rope = read_rope(
            reader,
            common,
            default_partial=1.0,
            aliases={"su": "longrope", "yarn": "longrope"},
            default_original=4096,
        )
        if rope.rope_type not in ("default", "longrope"):
            raise reader.error(f"rope_type {rope.rope_type!r} is not supported for Phi-3, only longrope")
        window = reader.optional_integer("sliding_window", None)
        reader.only("full_attn_mod", 1)
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5, rope=rope),
            windows=same_everywhere(reader, common["num_layers"], window),
        )
