"""OLMo 2 (OLMo Team 2025): each branch is normalized after it; query and key are, over all heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.embedding import gather
from armllm.layers.norm import RMSNorm
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding


class Olmo2Attention(LlamaAttention):
    """Query and key are normalized before they are cut into heads."""

    by_heads = False

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        super().__init__(config, weights, rotary, index)
        self.q_norm = RMSNorm(weights.scope("q_norm"), self.sizes[0], config.rms_norm_eps)
        self.k_norm = RMSNorm(weights.scope("k_norm"), self.sizes[1], config.rms_norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, the first two normalized."""
        query, key, value = torch.split(self.qkv_proj(x), self.sizes, dim=-1)
        return self.heads(self.q_norm(query)), self.heads(self.k_norm(key)), self.heads(value)


class NormAfterDecoderLayer(LlamaDecoderLayer):
    """x + norm(attention(x)), then x + norm(mlp(x))."""

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those after the branches."""
        self.post_attention_layernorm = self.load_norm(config, weights, "post_attention_layernorm")
        self.post_feedforward_layernorm = self.load_norm(config, weights, "post_feedforward_layernorm")

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        total = x if residual is None else residual.add_(x)
        attended = self.post_attention_layernorm(self.self_attn(total, places, metadata, rows))
        total = (total if rows is None else gather(total, rows)).add_(attended)
        return self.post_feedforward_layernorm(self.mlp(total)), total


class Olmo2DecoderLayer(NormAfterDecoderLayer):
    """OLMo 2's attention between norms after the branches."""

    attention_class = Olmo2Attention


class Olmo2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with OLMo 2's layers."""

    layer_class: type[LlamaDecoderLayer] = Olmo2DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """OLMo 2's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common("Olmo2ForCausalLM", default_eos=50279, default_positions=2048)
        return LlamaConfig(
            **llama_fields(reader, common, default_eps=1e-5),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
        )
