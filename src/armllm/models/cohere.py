"""Command R (Cohere 2024), R7B and A (Cohere2): branches side by side, layer norms without biases."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.norm import HeadNorm, LayerNorm, RMSNorm
from armllm.models.llama import LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.stablelm import HeadNormAttention, ParallelConfig, ParallelDecoderLayer
from armllm.models.windows import SLIDING, by_layer, read_pattern, same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohereConfig(ParallelConfig):
    """logit_scale: factor of the logits. rotates: per layer, whether it knows positions."""

    logit_scale: float
    rotates: tuple[bool, ...]


class CohereAttention(HeadNormAttention):
    """Llama's, maybe with norms of heads."""

    @staticmethod
    def load_head_norms(config: ParallelConfig, weights: Weights) -> list[HeadNorm]:
        """Those of queries and of keys, all heads in one tensor."""
        return [
            HeadNorm(weights.take(f"{name}.weight", heads, config.head_dim), config.rms_norm_eps)
            for name, heads in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads))
        ]


class CohereDecoderLayer(ParallelDecoderLayer):
    """x + attention(norm(x)) + mlp(norm(x))."""

    attention_class = CohereAttention

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> RMSNorm | LayerNorm:
        """A norm without bias."""
        return LayerNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps, bias=False)


class CohereForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Cohere's layers and scaled logits."""

    config: CohereConfig
    layer_class = CohereDecoderLayer

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """None for layers without positions."""
        return self.rotary if self.config.rotates[index] else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled scores of every token of the vocabulary."""
        return super().logits(hidden).mul_(self.config.logit_scale)

    @staticmethod
    def read_config(reader: ConfigReader) -> CohereConfig:
        """Command R's config.json."""
        fields = cohere_fields(reader, "CohereForCausalLM", default_theta=500000.0)
        num_layers = fields["num_layers"]
        return CohereConfig(
            **fields,
            windows=same_everywhere(reader, num_layers, None),
            head_norms=reader.boolean("use_qk_norm", default=False),
            rotates=(True,) * num_layers,
        )


class Cohere2ForCausalLM(CohereForCausalLM):
    """Layers with a window know positions, those that see all tokens don't."""

    @staticmethod
    def read_config(reader: ConfigReader) -> CohereConfig:
        """The config.json of Command R7B and A."""
        fields = cohere2_fields(reader, "Cohere2ForCausalLM")
        num_layers = fields["num_layers"]
        kinds = read_pattern(reader, num_layers, 4)
        return CohereConfig(
            **fields,
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 4096)),
            rotates=tuple(kind == SLIDING for kind in kinds),
        )


def cohere2_fields(reader: ConfigReader, architecture: str, **defaults: int) -> dict[str, Any]:
    """As `cohere_fields`; some files say in more keys what the class is anyway."""
    for name, value in (("rotary_pct", 1.0), ("use_gated_activation", True), ("use_parallel_block", True)):
        reader.only(name, value)
    return cohere_fields(reader, architecture, default_theta=10000.0, **defaults)


def cohere_fields(
    reader: ConfigReader, architecture: str, *, default_theta: float, default_head_dim: int | None = None
) -> dict[str, Any]:
    """What all share."""
    bias = reader.boolean("attention_bias", default=False)
    common = reader.common(
        architecture,
        default_eos=255001,
        default_positions=8192,
        default_head_dim=default_head_dim,
        default_tied=True,
    )
    rope = read_rope(
        reader,
        common,
        default_theta=default_theta,
        interleaved=True,
    )
    return {
        **llama_fields(reader, common, default_eps=1e-5, eps_name="layer_norm_eps", rope=rope),
        "qkv_bias": bias,
        "output_bias": bias,
        "parallel": True,
        "logit_scale": reader.number("logit_scale", 0.0625),
    }
