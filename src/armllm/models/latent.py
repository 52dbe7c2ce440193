"""Latent attention (DeepSeek-AI 2024, arXiv:2405.04434): keys and values come from one vector per token.

The cache holds these vectors. Where adapters may change what they expand to, it holds what they expand to:
the key and the value of each head.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from armllm.checkpoint.config import ConfigReader
from armllm.layers.attention import Attention
from armllm.layers.embedding import gather
from armllm.layers.encoder_attention import EncoderAttention
from armllm.layers.linear import HeadLinear, load_linear, matrix_of
from armllm.layers.lora import current_slots
from armllm.layers.norm import RMSNorm
from armllm.layers.ranks import Cut, building_for, current_ranks, own_range
from armllm.models.llama import LlamaConfig, llama_fields
from armllm.models.rope import read_rope
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.linear import Linear
    from armllm.layers.rotary import RopeParameters, RotaryEmbedding

LATENT_EPS = 1e-6  # of the norms of latent vectors, whatever config.json says of the others
HEAD_DIM_STEP, LARGEST_HEAD_DIM = 8, 1024  # the attention kernel's


@dataclasses.dataclass(frozen=True, kw_only=True)
class LatentConfig(LlamaConfig):
    """``head_dim`` is what an expanded cache holds of a key or a value: the longer of both, in steps of 8.

    plain_dim, rotary_dim: elements of a head's query and key without and with positions. value_dim: of its
    value. query_rank, kv_rank: elements of the latent vectors; no query_rank: queries have none.
    """

    plain_dim: int
    rotary_dim: int
    value_dim: int
    query_rank: int | None
    kv_rank: int
    attention_scale: float


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
        # Adapters change the product with kv_b_proj, and calibration looks at it.
        is_fixed = current_slots() is None and weights.watch is None
        fits = config.kv_rank + config.rotary_dim <= LARGEST_HEAD_DIM
        self.heads = (LatentHeads if is_fixed and fits else ExpandedHeads)(config, weights, index)
        self.o_proj = load_linear(
            weights, {"o_proj": hidden_size}, heads * config.value_dim, bias=config.output_bias
        )

    @property
    def attention(self) -> Attention:
        """That of the heads, with its cache."""
        return self.heads.attention

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        config = self.config
        latent, shared = self.kv_a_proj(x).split_with_sizes((config.kv_rank, config.rotary_dim), 1)
        if config.query_rank is not None:
            x = self.q_a_layernorm(self.q_a_proj(x))
        query = self.q_proj(x).view(x.shape[0], config.num_heads, config.plain_dim + config.rotary_dim)
        shared = shared.unsqueeze(1)
        if self.rotary is not None:
            rotated = query.split_with_sizes((config.plain_dim, config.rotary_dim), 2)[1]
            self.rotary(places, rotated, shared)
        attended = self.heads(query, self.kv_a_layernorm(latent), shared, metadata)
        return self.o_proj(attended if rows is None else gather(attended, rows))


class ExpandedHeads:
    """Attention to keys and values of each head, which the cache holds, padded to one length."""

    def __init__(self, config: LatentConfig, weights: Weights, index: int) -> None:
        self.config = config
        expanded = config.num_heads * (config.plain_dim + config.value_dim)
        self.kv_b_proj = load_linear(weights, {"kv_b_proj": expanded}, config.kv_rank, bias=False)
        self.attention = Attention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_heads,
            head_dim=config.head_dim,
            scale=config.attention_scale,
            sliding_window=config.windows[index],
        )

    def __call__(self, query: Tensor, latent: Tensor, shared: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Values ``[T, num_heads * value_dim]`` that each head attends to.

        query ``[T, num_heads, plain_dim + rotary_dim]``, latent ``[T, kv_rank]``, shared
        ``[T, 1, rotary_dim]``.
        """
        config = self.config
        key, value = expand(self.kv_b_proj, config, latent, shared, config.num_heads)
        attended = self.attention(padded(query, config.head_dim), key, value, metadata)
        return attended[..., : config.value_dim].flatten(1).contiguous()  # a view for values of 1


class LatentHeads:
    """Attention to ``[latent vector, rotated part]`` in the cache: key and value of all heads.

    What expands a latent vector is absorbed by the query and by what was attended to (section 2.1.2 of the
    paper): q (W_k c) = (W_k^T q) c, and the sum of p W_v c is W_v times the sum of p c. For a new prompt that
    would be three times as many multiplications, so its keys and values are expanded, for this step only.
    """

    def __init__(self, config: LatentConfig, weights: Weights, index: int) -> None:
        self.config = config
        ranks, heads = current_ranks(), config.num_heads
        self.own = own_range(heads, *((0, 1) if ranks is None else (ranks.rank, ranks.size)))
        num_own, plain, values = len(self.own), config.plain_dim, config.value_dim
        self.kv_b_proj = load_linear(
            weights, {"kv_b_proj": heads * (plain + values)}, config.kv_rank, bias=False, gathered=False
        )
        matrix = matrix_of(self.kv_b_proj, weights, num_own * (plain + values), config.kv_rank)
        to_key, to_value = matrix.view(num_own, plain + values, -1).split_with_sizes((plain, values), 1)
        self.to_latent = HeadLinear(to_key.transpose(1, 2))
        self.to_value = HeadLinear(to_value)
        self.expanded = EncoderAttention(
            num_heads=num_own, head_dim=config.head_dim, causal=True, scale=config.attention_scale
        )
        with building_for(None):  # every rank has the latent vectors of all tokens
            self.attention = Attention(
                num_heads=num_own,
                num_kv_heads=1,
                head_dim=-(-(config.kv_rank + config.rotary_dim) // HEAD_DIM_STEP) * HEAD_DIM_STEP,
                scale=config.attention_scale,
                sliding_window=config.windows[index],
            )
        self._gather = None if ranks is None else Cut(ranks).gatherer([heads * values])

    def __call__(self, query: Tensor, latent: Tensor, shared: Tensor, metadata: AttentionMetadata) -> Tensor:
        """As `ExpandedHeads`."""
        if self._gather is not None:
            query = query[:, self.own.start : self.own.stop]
        key = padded(torch.cat([latent.unsqueeze(1), shared], 2), self.attention.head_dim)
        self.attention.store(key, key, metadata)
        if metadata.new_sequences is None:
            attended = self._absorb(query, metadata)
        else:
            before, starts = metadata.new_sequences
            row = len(before.slot_mapping)
            attended = self._expand(query[row:], latent[row:], shared[row:], starts)
            if row:
                attended = torch.cat([self._absorb(query[:row], before), attended])
        return attended if self._gather is None else self._gather(attended)

    def _absorb(self, query: Tensor, metadata: AttentionMetadata) -> Tensor:
        plain, rotated = query.split_with_sizes((self.config.plain_dim, self.config.rotary_dim), 2)
        query = padded(torch.cat([self.to_latent(plain), rotated], 2), self.attention.head_dim)
        attended = self.attention.attend(query, metadata)
        return self.to_value(attended[..., : self.config.kv_rank]).flatten(1)

    def _expand(self, query: Tensor, latent: Tensor, shared: Tensor, starts: Tensor) -> Tensor:
        config = self.config
        key, value = expand(self.kv_b_proj, config, latent, shared, len(self.own))
        attended = self.expanded(padded(query, config.head_dim), key, value, starts)
        return attended[..., : config.value_dim].flatten(1).contiguous()


def expand(
    product: Linear, config: LatentConfig, latent: Tensor, shared: Tensor, heads: int
) -> tuple[Tensor, Tensor]:
    """Keys and values ``[T, heads, head_dim]`` of latent vectors, the zeros behind them included."""
    expanded = product(latent).view(latent.shape[0], heads, config.plain_dim + config.value_dim)
    plain, value = expanded.split_with_sizes((config.plain_dim, config.value_dim), 2)
    key = torch.cat([plain, shared.expand(latent.shape[0], heads, config.rotary_dim)], 2)
    return padded(key, config.head_dim), padded(value, config.head_dim)


def padded(x: Tensor, length: int) -> Tensor:
    """``x[T, num_heads, d]`` with zeros behind."""
    missing = length - x.shape[-1]
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


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
        common | {"head_dim": sizes["rotary_dim"]},
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
