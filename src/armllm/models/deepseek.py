"""DeepSeek V2 (DeepSeek-AI 2024) and V3: keys and values come from one latent vector per token.

The cache holds what the latent vectors expand to, each head's key and value.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from armllm.checkpoint.config import ConfigReader
from armllm.layers.attention import Attention
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.norm import RMSNorm
from armllm.models.glm4_moe import (
    GroupedMoEConfig,
    GroupedMoEDecoderLayer,
    predicting_tensors,
    read_routing,
    sparse_fields,
)
from armllm.models.llama import LlamaConfig, LlamaForCausalLM, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ModelConfig
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding

LATENT_EPS = 1e-6  # of the norms of latent vectors, whatever config.json says of the others
HEAD_DIM_STEP = 8  # the attention kernel's


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig(LlamaConfig):
    """``head_dim`` is what the cache holds of a key or a value: the longer of both, in steps of 8.

    plain_dim, rotary_dim: elements of a head's query and key without and with positions. value_dim: of its
    value. query_rank, kv_rank: elements of the latent vectors; no query_rank: queries have none.
    """

    plain_dim: int
    rotary_dim: int
    value_dim: int
    query_rank: int | None
    kv_rank: int
    attention_scale: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepSeekConfig(LatentConfig, GroupedMoEConfig):
    """Latent attention and grouped experts."""


class Defaults(NamedTuple):
    """Of the fields that `read_latent` reads: what the family's class in transformers has."""

    eos: int
    positions: int
    intermediate: int
    eps: float = 1e-6
    plain_dim: int = 128
    rotary_dim: int = 64
    value_dim: int | None = 128
    query_rank: int = 1536
    kv_rank: int = 512
    tied: bool = False


class LatentAttention:
    """Multi-head latent attention; the rotated part of a key is the same for all heads."""

    def __init__(
        self,
        config: LatentConfig,
        weights: Weights,
        rotary: RotaryEmbedding | None,
        index: int,
    ) -> None:
        heads, hidden_size, rank = config.num_heads, config.hidden_size, config.query_rank
        self.config, self.rotary = config, rotary
        queries = heads * (config.plain_dim + config.rotary_dim)
        if rank is None:
            self.q_proj = load_linear(weights, {"q_proj": queries}, hidden_size, bias=False)
        else:
            self.q_a_proj = load_linear(weights, {"q_a_proj": rank}, hidden_size, bias=config.qkv_bias)
            self.q_a_layernorm = RMSNorm(weights.scope("q_a_layernorm"), rank, LATENT_EPS)
            self.q_proj = load_linear(weights, {"q_b_proj": queries}, rank, bias=False)
        self.kv_a_proj = load_linear(
            weights,
            {"kv_a_proj_with_mqa": config.kv_rank + config.rotary_dim},
            hidden_size,
            bias=config.qkv_bias,
        )
        self.kv_a_layernorm = RMSNorm(weights.scope("kv_a_layernorm"), config.kv_rank, LATENT_EPS)
        expanded = heads * (config.plain_dim + config.value_dim)
        self.kv_b_proj = load_linear(weights, {"kv_b_proj": expanded}, config.kv_rank, bias=False)
        self.o_proj = load_linear(
            weights, {"o_proj": hidden_size}, heads * config.value_dim, bias=config.output_bias
        )
        self.attention = Attention(
            num_heads=heads,
            num_kv_heads=heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            sliding_window=config.windows[index],
        )

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        query, key, value = self.project(x, places)
        attended = self.attention(self.padded(query), self.padded(key), self.padded(value), metadata)
        attended = attended[..., : self.config.value_dim].flatten(1).contiguous()  # a view for values of 1
        return self.o_proj(attended if rows is None else gather(attended, rows))

    def project(self, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key ``[T, num_heads, plain_dim + rotary_dim]``, value ``[T, num_heads, value_dim]``."""
        config = self.config
        tokens, heads = x.shape[0], config.num_heads
        plain, rotated, values = config.plain_dim, config.rotary_dim, config.value_dim
        latent, shared = self.kv_a_proj(x).split_with_sizes((config.kv_rank, rotated), 1)
        if config.query_rank is not None:
            x = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_proj(x).view(tokens, heads, plain + rotated)
        shared = shared.unsqueeze(1)
        if self.rotary is not None:
            self.rotary(places, query.split_with_sizes((plain, rotated), 2)[1], shared)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent)).view(tokens, heads, plain + values)
        key, value = expanded.split_with_sizes((plain, values), 2)
        return query, torch.cat([key, shared.expand(tokens, heads, rotated)], 2), value

    def padded(self, x: Tensor) -> Tensor:
        """``x[T, num_heads, d]`` with zeros behind, up to what the cache holds."""
        missing = self.config.head_dim - x.shape[-1]
        return torch.nn.functional.pad(x, (0, missing)) if missing else x


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


def read_latent(
    reader: ConfigReader, architecture: str, defaults: Defaults, *, interleaved: bool
) -> dict[str, Any]:
    """The fields of `LatentConfig`."""
    common = reader.common(
        architecture,
        default_eos=defaults.eos,
        default_positions=defaults.positions,
        default_tied=defaults.tied,
    )
    if common["num_kv_heads"] != common["num_heads"]:
        raise reader.error("num_key_value_heads must be num_attention_heads: all share one latent vector")
    value_dim = defaults.value_dim or common["hidden_size"] // common["num_heads"]
    sizes: dict[str, Any] = {
        "plain_dim": reader.integer("qk_nope_head_dim", defaults.plain_dim),
        "rotary_dim": reader.integer("qk_rope_head_dim", defaults.rotary_dim),
        "value_dim": reader.integer("v_head_dim", value_dim),
    }
    key_dim = sizes["plain_dim"] + sizes["rotary_dim"]
    reader.only("qk_head_dim", key_dim)
    longer = max(key_dim, sizes["value_dim"])
    common["head_dim"] = -(-longer // HEAD_DIM_STEP) * HEAD_DIM_STEP
    rope = read_rope(
        reader,
        head_dim=sizes["rotary_dim"],
        positions=common["max_position_embeddings"],
        interleaved=interleaved,
    )
    bias = reader.boolean("attention_bias", default=False)
    fields = llama_fields(
        reader, common, rope=rope, default_eps=defaults.eps, default_intermediate=defaults.intermediate
    )
    return {
        **fields,
        **sizes,
        "windows": same_everywhere(reader, common["num_layers"], None),
        "query_rank": reader.optional_integer("q_lora_rank", defaults.query_rank),
        "kv_rank": reader.integer("kv_lora_rank", defaults.kv_rank),
        "attention_scale": key_dim**-0.5 * sharpness(reader, rope) ** 2,
        "qkv_bias": bias,
        "output_bias": bias,
    }


def sharpness(reader: ConfigReader, rope: RopeParameters) -> float:
    """By what yarn's mscale_all_dim multiplies queries and keys (Peng et al. 2023)."""
    values = reader.get("rope_scaling", None) or reader.get("rope_parameters", {})
    if rope.rope_type != "yarn" or not values.get("mscale_all_dim") or rope.factor <= 1:
        return 1.0
    share = ConfigReader(values, reader.path, reader.prefix).number("mscale_all_dim")
    return 0.1 * share * math.log(rope.factor) + 1.0
