"""Gemma 2 (Gemma Team 2024): norms around both branches, capped scores, windows in every other layer."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.embedding import gather
from armllm.layers.norm import RMSNorm
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    add_and_normalize,
    llama_fields,
)
from armllm.models.windows import FULL, SLIDING, by_layer, read_layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata

# What the classes in transformers take for a missing value; Gemma 3's files leave much out.
SIZES = {"hidden_size": 2304, "num_hidden_layers": 26}
INTERMEDIATE_SIZE = 9216
ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GemmaConfig(LlamaConfig):
    """attention_scale: of the scores. *_soft_cap: c * tanh(x / c). norm_offset: added to norm weights."""

    attention_scale: float
    attention_soft_cap: float | None
    final_soft_cap: float | None
    norm_offset: float


class GemmaAttention(LlamaAttention):
    """Llama's, with another scale and capped scores."""

    @staticmethod
    def score_options(config: GemmaConfig) -> dict[str, Any]:
        """Scale and cap."""
        return {"scale": config.attention_scale, "logit_soft_cap": config.attention_soft_cap}


class NormAroundDecoderLayer(LlamaDecoderLayer):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    norm_names: tuple[str, str, str, str]

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those before and after the branches."""
        self.norms = [self.load_norm(config, weights, name) for name in self.norm_names]

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        before_attention, after_attention, before_mlp, after_mlp = self.norms
        x, residual = add_and_normalize(before_attention, x, residual)
        x = after_attention(self.self_attn(x, places, metadata, rows))
        if rows is not None:
            residual = gather(residual, rows)
        before_mlp.add(x, residual)
        return after_mlp(self.mlp(x)), residual


class Gemma2DecoderLayer(NormAroundDecoderLayer):
    """Gemma's attention and norms."""

    attention_class: type[LlamaAttention] = GemmaAttention
    norm_names = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )

    @staticmethod
    def load_norm(config: GemmaConfig, weights: Weights, name: str) -> RMSNorm:
        """A norm whose weight is stored around zero."""
        return RMSNorm(
            weights.scope(name), config.hidden_size, config.rms_norm_eps, weight_offset=config.norm_offset
        )


class CappedLogits(LlamaForCausalLM):
    """A decoder whose scores are capped: c * tanh(x / c) with the configuration's final_soft_cap."""

    config: Any

    def logits(self, hidden: Tensor) -> Tensor:
        """Capped scores of every token of the vocabulary."""
        logits, cap = super().logits(hidden), self.config.final_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


class Gemma2ForCausalLM(CappedLogits):
    """Llama's decoder with Gemma 2's layers, scaled embeddings and capped logits."""

    config: GemmaConfig
    layer_class: type[LlamaDecoderLayer] = Gemma2DecoderLayer

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embeddings times sqrt(hidden_size), which is rounded to their dtype as in training."""
        x = super().embed(token_ids)
        return x.mul_(torch.tensor(self.config.hidden_size**0.5, dtype=x.dtype))

    @classmethod
    def read_config(cls, reader: ConfigReader) -> GemmaConfig:
        """Gemma 2's config.json."""
        fields = gemma_fields(reader, cls.__name__, default_positions=8192, vocab_size=256000)
        fields = llama_fields(reader, fields, activation=ACTIVATION, default_intermediate=INTERMEDIATE_SIZE)
        num_layers = fields["num_layers"]
        kinds = read_layer_types(
            reader, num_layers, [SLIDING if index % 2 == 0 else FULL for index in range(num_layers)]
        )
        return GemmaConfig(
            **fields,
            **score_fields(reader, attention_cap=50.0, final_cap=30.0),
            windows=by_layer(reader, kinds, reader.optional_integer("sliding_window", 4096)),
        )


def gemma_fields(
    reader: ConfigReader, architecture: str, *, default_positions: int, vocab_size: int
) -> dict[str, Any]:
    """`ConfigReader.common` with the defaults of Gemma's classes."""
    return reader.common(
        architecture,
        default_eos=1,
        default_positions=default_positions,
        default_heads=8,
        default_kv_heads=4,
        default_head_dim=256,
        default_tied=True,
        default_sizes=SIZES | {"vocab_size": vocab_size},
    )


def score_fields(
    reader: ConfigReader, *, attention_cap: float | None, final_cap: float | None
) -> dict[str, Any]:
    """Biases, scales, caps. hidden_act and sliding_window_size are there for old readers."""
    reader.only("use_bidirectional_attention", False)
    for name in ("hidden_act", "sliding_window_size"):
        reader.has(name)
    bias = reader.boolean("attention_bias", default=False)
    return {
        "qkv_bias": bias,
        "output_bias": bias,
        "attention_scale": reader.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_soft_cap": reader.optional_number("attn_logit_softcapping", attention_cap),
        "final_soft_cap": reader.optional_number("final_logit_softcapping", final_cap),
        "norm_offset": 0.0 if reader.boolean("norm_weights_are_offset", default=False) else 1.0,
    }
