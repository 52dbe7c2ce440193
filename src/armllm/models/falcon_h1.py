"""Falcon-H1 (Falcon-LLM Team 2025): Mamba 2 beside attention in each layer, and factors everywhere (muP)."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from armllm.layers.embedding import gather
from armllm.layers.mlp import GatedMLP
from armllm.models.llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    Mixer,
    add_and_normalize,
    llama_fields,
)
from armllm.models.mamba import Mamba, MambaConfig, mamba_fields, only_free_steps
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

FACTORS = {
    "embedding_factor": "embedding_multiplier",
    "head_factor": "lm_head_multiplier",
    "key_factor": "key_multiplier",
    "attention_in": "attention_in_multiplier",
    "attention_out": "attention_out_multiplier",
    "mamba_in": "ssm_in_multiplier",
    "mamba_out": "ssm_out_multiplier",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FalconH1Config(MambaConfig):
    """Factors of what the names say.

    mamba_parts: of gates, inputs, writes, reads and steps. mlp_factors: of gates and results of the
    feed-forward part. mamba_norm: whether Mamba has a norm; gate_last: its gates come after the norm.
    """

    embedding_factor: float
    head_factor: float
    key_factor: float
    attention_in: float
    attention_out: float
    mamba_in: float
    mamba_out: float
    mamba_parts: tuple[float, ...]
    mlp_factors: tuple[float, ...]
    mamba_norm: bool
    gate_last: bool


class FalconH1Attention(LlamaAttention):
    """Llama's; the factor of the keys is in the scale of the scores."""

    @staticmethod
    def score_options(config: FalconH1Config) -> dict[str, Any]:
        """The scale."""
        return {"scale": config.head_dim**-0.5 * config.key_factor}


class FalconH1Mamba(Mamba):
    """Mamba 2 with factors, and maybe without a norm."""

    config: FalconH1Config

    def __init__(self, config: FalconH1Config, weights: Weights) -> None:
        super().__init__(config, weights)
        each = config.mamba_groups * config.state_size
        sizes = (config.mamba_size, config.mamba_size, each, each, config.mamba_heads)
        factors = [torch.full((size,), one) for size, one in zip(sizes, config.mamba_parts, strict=True)]
        self.factors = torch.cat(factors).to(weights.dtype)

    def load_norm(self, exact: Weights) -> Callable[[Tensor], Tensor]:
        """The norm if there is one."""
        return super().load_norm(exact) if self.config.mamba_norm else torch.nn.Identity()

    def project(self, x: Tensor) -> Tensor:
        """The same with the factors."""
        return super().project(x * self.config.mamba_in).mul_(self.factors)

    def gated(self, found: Tensor, gate: Tensor) -> Tensor:
        """The gates come before the norm or after it."""
        return self.norm(found) * gate if self.config.gate_last else super().gated(found, gate)


class FalconH1MLP(GatedMLP):
    """A gated feed-forward part with a factor of its gates and one of its results."""

    def __init__(self, config: FalconH1Config, weights: Weights) -> None:
        super().__init__(
            weights,
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            bias=config.mlp_bias,
        )
        gate_factor, self.result_factor = config.mlp_factors
        self.activation = partial(_scale_and_activate, gate_factor, self.activation)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        return super().__call__(x).mul_(self.result_factor)


class FalconH1DecoderLayer(LlamaDecoderLayer):
    """x + attention(norm(x)) + mamba(norm(x)), then x + mlp(norm(x))."""

    attention_class = FalconH1Attention
    norm_names = ("input_layernorm", "pre_ff_layernorm")

    def __init__(
        self, config: FalconH1Config, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.mamba = FalconH1Mamba(config, weights.scope("mamba"))
        self.config = config

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Both."""
        return (self.self_attn, self.mamba)

    @staticmethod
    def load_mlp(config: FalconH1Config, weights: Weights, index: int) -> FalconH1MLP:  # noqa: ARG004
        """The feed-forward part."""
        return FalconH1MLP(config, weights.scope("feed_forward"))

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far, as in Llama."""
        config = self.config
        x, residual = add_and_normalize(self.input_layernorm, x, residual)
        remembered = self.mamba(x, places, metadata, rows).mul_(config.mamba_out)
        attended = self.self_attn(x * config.attention_in, places, metadata, rows)
        x = attended.mul_(config.attention_out).add_(remembered)
        if rows is not None:
            residual = gather(residual, rows)
        self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class FalconH1ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with these layers."""

    config: FalconH1Config
    layer_class = FalconH1DecoderLayer
    names = ("embed_tokens", "layers", "final_layernorm")

    def embed(self, token_ids: Tensor) -> Tensor:
        """Scaled embeddings."""
        return super().embed(token_ids).mul_(self.config.embedding_factor)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled scores of every token of the vocabulary."""
        return super().logits(hidden).mul_(self.config.head_factor)

    @staticmethod
    def read_config(reader: ConfigReader) -> FalconH1Config:
        """Falcon-H1's config.json."""
        only_free_steps(reader)
        reader.only("hidden_act", "silu", "swish")  # which is also that of the convolution
        common = reader.common(
            "FalconH1ForCausalLM",
            default_eos=2,
            default_positions=8192,
            default_heads=32,
            default_kv_heads=8,
            default_sizes={"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128000},
        )
        expanded = reader.integer("mamba_expand", 2) * common["hidden_size"]
        size = reader.optional_integer("mamba_d_ssm", 1024) or expanded
        bias = reader.boolean("attention_bias", default=False)
        factors: dict[str, Any] = {field: reader.number(key, 1.0) for field, key in FACTORS.items()}
        return FalconH1Config(
            **llama_fields(reader, common, default_eps=1e-5, default_intermediate=14336),
            **mamba_fields(reader, size)
            | {"mamba_output_bias": reader.boolean("projectors_bias", default=False)},
            **factors,
            mamba_parts=_factors(reader, "ssm_multipliers", 5),
            mlp_factors=_factors(reader, "mlp_multipliers", 2),
            mamba_norm=reader.boolean("mamba_rms_norm", default=False),
            gate_last=reader.boolean("mamba_norm_before_gate", default=True),
            windows=same_everywhere(reader, common["num_layers"], None),
            is_recurrent=True,
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )


def _factors(reader: ConfigReader, name: str, length: int) -> tuple[float, ...]:
    return reader.numbers(name, length) if reader.get(name, None) is not None else (1.0,) * length


def _scale_and_activate(factor: float, activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The activation of the gates, the first half of each row, times a factor."""
    x[:, : x.shape[1] // 2].mul_(factor)
    return activation(x)
