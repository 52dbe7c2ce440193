"""nanochat (Karpathy 2025): norms without weights, one of them before the first layer, and capped logits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.activation import PLAIN
from armllm.layers.norm import PlainNorm
from armllm.models.gemma2 import CappedLogits
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    llama_fields,
    plain_mlp,
)
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.mlp import PlainMLP
    from armllm.layers.rotary import RotaryEmbedding


@dataclasses.dataclass(frozen=True, kw_only=True)
class NanoChatConfig(LlamaConfig):
    """final_soft_cap: c of c * tanh(logits / c)."""

    final_soft_cap: float | None


class NanoChatAttention(LlamaAttention):
    """Each head's query and key are turned the other way round, then normalized."""

    def __init__(
        self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.norm = PlainNorm(config.head_dim, config.rms_norm_eps, weights.dtype)

    def rotate(self, places: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key with swapped halves: their products are those of halves turned backwards."""
        query, key = super().rotate(places, _swapped(query), _swapped(key))
        return self.norm(query), self.norm(key)


class NanoChatDecoderLayer(LlamaDecoderLayer):
    """Llama's layer with norms without weights and a plain feed-forward part."""

    attention_class = NanoChatAttention

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> PlainNorm:  # noqa: ARG004
        """One of the norms, for which nothing is stored."""
        return PlainNorm(config.hidden_size, config.rms_norm_eps, weights.dtype)

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> PlainMLP:  # noqa: ARG004
        """The feed-forward part."""
        return plain_mlp(config, weights, ("fc1", "fc2"))


class NanoChatForCausalLM(CappedLogits):
    """Llama's decoder with these layers, normalized embeddings and capped logits."""

    config: NanoChatConfig
    layer_class = NanoChatDecoderLayer

    def __init__(self, config: NanoChatConfig, weights: Weights, *, max_positions: int) -> None:
        super().__init__(config, weights, max_positions=max_positions)
        self.first_norm = self.layer_class.load_norm(config, weights, "")

    def embed(self, token_ids: Tensor) -> Tensor:
        """Normalized embeddings."""
        return self.first_norm(super().embed(token_ids))

    @staticmethod
    def read_config(reader: ConfigReader) -> NanoChatConfig:
        """Nanochat's config.json."""
        common = reader.common(
            "NanoChatForCausalLM",
            default_eos=1,
            default_positions=2048,
            default_heads=6,
            default_sizes={"hidden_size": 768, "num_hidden_layers": 12, "vocab_size": 50304},
        )
        bias = reader.boolean("attention_bias", default=False)
        return NanoChatConfig(
            **llama_fields(
                reader, common, activation=("hidden_act", "relu2", PLAIN), default_intermediate=8192
            ),
            windows=same_everywhere(reader, common["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            final_soft_cap=reader.optional_number("final_logit_softcapping", 15.0),
        )


def _swapped(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((second, first), -1)
