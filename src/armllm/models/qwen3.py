"""Qwen3 (Yang et al. 2025): no biases, and every head's query and key are normalized."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.layers.norm import RMSNorm
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.qwen2 import qwen_windows

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RotaryEmbedding


class Qwen3Attention(LlamaAttention):
    """Each head's query and key are normalized before they are rotated."""

    head_norm_names = ("q_norm", "k_norm")

    def __init__(
        self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.q_norm, self.k_norm = (
            RMSNorm(weights.scope(name), config.head_dim, config.rms_norm_eps)
            for name in self.head_norm_names
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, the first two normalized."""
        query, key, value = super().project(x)
        return self.q_norm(query), self.k_norm(key), value


class Qwen3DecoderLayer(LlamaDecoderLayer):
    """Llama's layer around Qwen3's attention."""

    attention_class = Qwen3Attention


class Qwen3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Qwen3's layers."""

    layer_class = Qwen3DecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Qwen3's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        common = reader.common(
            "Qwen3ForCausalLM", default_positions=32768, default_kv_heads=32, default_head_dim=128
        )
        return LlamaConfig(
            **llama_fields(reader, common),
            windows=qwen_windows(reader, common["num_layers"]),
            qkv_bias=bias,
            output_bias=bias,
        )
