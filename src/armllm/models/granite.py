"""Granite 3, dense (Granite Team 2024): Llama with a factor on embeddings, scores, branches and logits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.embedding import gather
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    add_and_normalize,
    llama_fields,
)
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

FACTORS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GraniteConfig(LlamaConfig):
    """Factors of embeddings, scores and branches; logits_scaling is what logits are divided by."""

    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float


class GraniteAttention(LlamaAttention):
    """Llama's, with another scale."""

    @staticmethod
    def score_options(config: GraniteConfig) -> dict[str, Any]:
        """The scale."""
        return {"scale": config.attention_multiplier}


class GraniteDecoderLayer(LlamaDecoderLayer):
    """x + r * attention(norm(x)), then x + r * mlp(norm(x))."""

    attention_class: type[LlamaAttention] = GraniteAttention

    def __init__(
        self, config: GraniteConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.residual_multiplier = config.residual_multiplier

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        x, residual = add_and_normalize(self.input_layernorm, x, residual)
        x = self.self_attn(x, places, metadata, rows).mul_(self.residual_multiplier)
        if rows is not None:
            residual = gather(residual, rows)
        self.post_attention_layernorm.add(x, residual)
        return self.mlp(x).mul_(self.residual_multiplier), residual


class GraniteForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Granite's layers."""

    config: GraniteConfig
    layer_class: type[LlamaDecoderLayer] = GraniteDecoderLayer

    def embed(self, token_ids: Tensor) -> Tensor:
        """Scaled embeddings."""
        return super().embed(token_ids).mul_(self.config.embedding_multiplier)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled scores of every token of the vocabulary."""
        return super().logits(hidden).div_(self.config.logits_scaling)

    @staticmethod
    def read_config(reader: ConfigReader) -> GraniteConfig:
        """Granite's config.json."""
        return GraniteConfig(
            **granite_fields(reader, "GraniteForCausalLM"),
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )


def granite_fields(
    reader: ConfigReader,
    architecture: str | dict[str, Any],
    *,
    default_eps: float = 1e-6,
    kinds_known: bool = False,
) -> dict[str, Any]:
    """What all models share; ``architecture``: or what `ConfigReader.common` has found by other defaults.

    ``kinds_known``: the caller reads layer_types.
    """
    bias = reader.boolean("attention_bias", default=False)
    common = architecture
    if isinstance(common, str):
        common = reader.common(common, default_eos=2, default_positions=2048)
    return {
        **llama_fields(reader, common, default_eps=default_eps),
        **{name: _factor(reader, name) for name in FACTORS},
        "windows": (None,) * common["num_layers"]
        if kinds_known
        else same_everywhere(reader, common["num_layers"], None),
        "qkv_bias": bias,
        "output_bias": bias,
    }


def _factor(reader: ConfigReader, name: str) -> float:
    """1 where the key is absent; what a null means differs between attention kernels of transformers."""
    factor = reader.optional_number(name, 1.0)
    if factor is None:
        raise reader.error(f"{name} null is not supported; remove it for 1.0")
    return factor
