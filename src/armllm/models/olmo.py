"""OLMo 1 (Groeneveld et al. 2024): norms without weights, and clipped queries, keys and values."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.norm import LayerNorm
from armllm.models.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RotaryEmbedding

EPS = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class OlmoConfig(LlamaConfig):
    """clip_qkv: greatest absolute value of queries, keys and values, if there is one."""

    clip_qkv: float | None


class ClippedAttention(LlamaAttention):
    """Query, key and value may be clipped."""

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        super().__init__(config, weights, rotary, index)
        self.clip: float | None = config.clip_qkv

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        parts = super().project(x)
        if self.clip is not None:
            for part in parts:
                part.clamp_(-self.clip, self.clip)
        return parts


class OlmoDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with OLMo's norms and attention."""

    attention_class = ClippedAttention

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> LayerNorm:
        """One of the norms, for which nothing is stored."""
        return LayerNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps, affine=False)


class OlmoForCausalLM(LlamaForCausalLM):
    """Llama's decoder with OLMo's layers."""

    layer_class = OlmoDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> OlmoConfig:
        """OLMo's config.json."""
        common = reader.common("OlmoForCausalLM", default_eos=50279, default_positions=2048)
        bias = reader.boolean("attention_bias", default=False)
        return OlmoConfig(
            **llama_fields(reader, common) | {"rms_norm_eps": EPS},
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            clip_qkv=reader.optional_number("clip_qkv", None),
        )
