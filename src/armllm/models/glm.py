"""GLM-4 (Team GLM 2024): half of each head turns, by pairs of neighbours; gate and up are one matrix.

GLM-4-0414 (Glm4ForCausalLM) also normalises each branch after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.embedding import gather
from armllm.models.llama import (
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    add_and_normalise,
    llama_fields,
)
from armllm.models.phi3 import Phi3DecoderLayer
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata

END_TOKENS = (151329, 151336, 151338)


class GlmDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with gate and up in one matrix."""

    load_mlp = staticmethod(Phi3DecoderLayer.load_mlp)


class Glm4DecoderLayer(GlmDecoderLayer):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those before and after the branches."""
        super().load_norms(config, weights)
        self.post_self_attn_layernorm = self.load_norm(config, weights, "post_self_attn_layernorm")
        self.post_mlp_layernorm = self.load_norm(config, weights, "post_mlp_layernorm")

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        x, residual = add_and_normalise(self.input_layernorm, x, residual)
        x = self.post_self_attn_layernorm(self.self_attn(x, places, metadata, rows))
        if rows is not None:
            residual = gather(residual, rows)
        self.post_attention_layernorm.add(x, residual)
        return self.post_mlp_layernorm(self.mlp(x)), residual


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
        head_dim=common["head_dim"],
        positions=common["max_position_embeddings"],
        default_partial=0.5,
        interleaved=True,
    )
    return LlamaConfig(
        **llama_fields(reader, common, default_eps=1.5625e-7, rope=rope),
        windows=same_everywhere(reader, common["num_layers"], None),
        qkv_bias=reader.boolean("attention_bias", default=True),
    )
