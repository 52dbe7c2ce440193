"""Youtu-LLM (Tencent 2025): Llama with DeepSeek V3's latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.models.latent import Defaults, LatentAttention, LatentConfig, read_latent
from armllm.models.llama import LlamaDecoderLayer, LlamaForCausalLM

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class YoutuDecoderLayer(LlamaDecoderLayer):
    """Llama's layer around latent attention."""

    attention_class = LatentAttention  # type: ignore[assignment]


class YoutuForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Youtu's layers."""

    layer_class = YoutuDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> LatentConfig:
        """Youtu-LLM's config.json."""
        fields = read_latent(
            reader,
            "YoutuForCausalLM",
            Defaults(eos=128001, positions=131072, intermediate=6144, tied=True),
            interleaved=reader.boolean("rope_interleave", default=True),
        )
        reader.only("mlp_bias", False)
        return LatentConfig(**fields)
