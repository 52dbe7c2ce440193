"""DeepSeek V2 (DeepSeek-AI 2024, arXiv:2405.04434) and V3: latent attention and grouped experts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.models.glm4_moe import (
    GroupedMoEConfig,
    GroupedMoEDecoderLayer,
    predicting_tensors,
    read_routing,
    sparse_fields,
)
from armllm.models.latent import Defaults, LatentAttention, LatentConfig, read_latent
from armllm.models.llama import LlamaForCausalLM

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader, ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSeekConfig(LatentConfig, GroupedMoEConfig):
    """Latent attention and grouped experts."""


class DeepSeekDecoderLayer(GroupedMoEDecoderLayer):
    """Latent attention and grouped experts."""

    attention_class = LatentAttention  # type: ignore[assignment]


class DeepseekV3ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with DeepSeek's layers; experts are chosen by biased sigmoids."""

    layer_class = DeepSeekDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> DeepSeekConfig:
        """DeepSeek V3's config.json."""
        reader.only("topk_method", "noaux_tc")
        reader.only("scoring_func", "sigmoid")
        routing = read_routing(reader, num_experts=256, per_token=8, groups=(8, 4), factor=2.5, sigmoid=True)
        return read_deepseek(
            reader,
            "DeepseekV3ForCausalLM",
            sparse_fields(reader, routing, size=2048, shared=1, first=3),
            Defaults(eos=1, positions=4096, intermediate=18432),
            interleaved=reader.boolean("rope_interleave", default=True),
        )

    @staticmethod
    def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
        """Also the layers that predict further tokens."""
        return (*LlamaForCausalLM.ignored_tensors(config), *predicting_tensors(config))


class DeepseekV2ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with DeepSeek's layers; experts are chosen by softmax."""

    layer_class = DeepSeekDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> DeepSeekConfig:
        """DeepSeek V2's config.json. Its class in transformers does not normalize the weights of experts."""
        method = reader.choice("topk_method", "greedy", ("greedy", "group_limited_greedy"))
        reader.only("scoring_func", "softmax")
        reader.only("norm_topk_prob", False)
        routing = read_routing(
            reader,
            num_experts=64,
            per_token=None,
            groups=None if method == "greedy" else (None, None),
            factor=1.0,
            sigmoid=False,
        )
        return read_deepseek(
            reader,
            "DeepseekV2ForCausalLM",
            sparse_fields(reader, routing, size=1407, shared=2, first=0) | {"num_predicting": 0},
            Defaults(eos=2, positions=2048, intermediate=11008),
            interleaved=True,
        )


def read_deepseek(
    reader: ConfigReader,
    architecture: str,
    sparse: dict[str, Any],
    defaults: Defaults,
    *,
    interleaved: bool,
) -> DeepSeekConfig:
    """What families with experts share; ``sparse``: from `sparse_fields`."""
    reader.only("moe_layer_freq", 1)
    reader.only("mlp_bias", False)
    fields = read_latent(reader, architecture, defaults, interleaved=interleaved)
    return DeepSeekConfig(**fields, **sparse)
