"""Qwen3.5 (Qwen Team 2026): Qwen3-Next's layers with products apart, dense or with experts; its text part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.layers.linear import load_linear
from armllm.models.mixtral import routing_fields
from armllm.models.qwen3_next import (
    DeltaNetConfig,
    GatedDeltaNet,
    HybridDecoderLayer,
    Qwen3NextConfig,
    Qwen3NextDecoderLayer,
    Qwen3NextForCausalLM,
    hybrid_fields,
)
from armllm.models.text_part import TextPart

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.models.llama import LlamaDecoderLayer

SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 248320}
TOWERS = ("model.visual.*", "visual.*")
MOE_SIZES = {"hidden_size": 2048, "num_hidden_layers": 40, "vocab_size": 248320}


class SeparateDeltaNet(GatedDeltaNet):
    """Query, key and value, gate, strength and step are separate products."""

    def load_inputs(self, config: DeltaNetConfig, weights: Weights) -> None:
        """One product for all four."""
        self.sizes = [2 * self.key_size + self.value_size, self.value_size] + [config.value_heads] * 2
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        self.in_proj = load_linear(
            weights, dict(zip(names, self.sizes, strict=True)), config.hidden_size, bias=False
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As they are."""
        joined, gate, strength, step = self.in_proj(x).split_with_sizes(self.sizes, 1)
        return joined, gate, strength, step


class Qwen35DecoderLayer(HybridDecoderLayer):
    """Dense."""

    delta_class = SeparateDeltaNet


class Qwen35MoeDecoderLayer(Qwen3NextDecoderLayer):
    """With experts."""

    delta_class = SeparateDeltaNet


class Qwen3_5ForCausalLM(Qwen3NextForCausalLM):  # noqa: N801 - the architecture's name
    """The dense decoder."""

    layer_class: type[LlamaDecoderLayer] = Qwen35DecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaNetConfig:
        """The config.json of a text model."""
        return read_dense(reader, cls.__name__)


class Qwen3_5MoeForCausalLM(Qwen3NextForCausalLM):  # noqa: N801 - the architecture's name
    """The decoder with experts."""

    layer_class = Qwen35MoeDecoderLayer

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DeltaNetConfig:
        """The config.json of a text model."""
        return read_sparse(reader, cls.__name__)


class Qwen3_5ForConditionalGeneration(TextPart, Qwen3_5ForCausalLM):  # noqa: N801
    """The text part of the dense model."""

    text_type = "qwen3_5_text"
    towers = TOWERS


class Qwen3_5MoeForConditionalGeneration(TextPart, Qwen3_5MoeForCausalLM):  # noqa: N801
    """The text part of the model with experts."""

    text_type = "qwen3_5_moe_text"
    towers = TOWERS


def read_dense(reader: ConfigReader, architecture: str) -> DeltaNetConfig:
    """Qwen3.5's text configuration, with the defaults of its class in transformers."""
    common = _common(reader, architecture, SIZES, kv_heads=4)
    return DeltaNetConfig(**hybrid_fields(reader, common, default_intermediate=12288))


def read_sparse(reader: ConfigReader, architecture: str) -> Qwen3NextConfig:
    """The same with experts in every layer."""
    reader.only("norm_topk_prob", True)
    common = _common(reader, architecture, MOE_SIZES, kv_heads=2)
    size = reader.integer("moe_intermediate_size", 512)
    return Qwen3NextConfig(
        **hybrid_fields(reader, common, default_intermediate=size),
        **routing_fields(reader, num_experts=reader.integer("num_experts", 256), per_token=8),
        moe_intermediate_size=size,
        sparse=(True,) * common["num_layers"],
        normalize=True,
        shared_size=reader.integer("shared_expert_intermediate_size", 512),
    )


def _common(
    reader: ConfigReader, architecture: str, sizes: dict[str, int], *, kv_heads: int
) -> dict[str, Any]:
    return reader.common(
        architecture,
        default_positions=32768,
        default_heads=16,
        default_kv_heads=kv_heads,
        default_head_dim=256,
        default_sizes=sizes,
    )
