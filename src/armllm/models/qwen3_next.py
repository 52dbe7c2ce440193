"""Qwen3-Next (Qwen Team 2025): gated delta nets, and attention with gated results in every few layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from armllm import kernels
from armllm.layers.causal_conv import CausalConv
from armllm.layers.embedding import gather
from armllm.layers.linear import load_linear
from armllm.layers.norm import RMSNorm
from armllm.layers.recurrent import RecurrentLayer, StateShape, check_recurrence, decay_of
from armllm.models.llama import LlamaAttention, LlamaConfig, LlamaDecoderLayer, LlamaForCausalLM, llama_fields
from armllm.models.mixtral import routing_fields
from armllm.models.qwen2_moe import QwenMoEConfig, QwenMoEDecoderLayer, sparse_fields
from armllm.models.rope import read_rope
from armllm.models.windows import FULL, LINEAR, read_layer_types

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader, ModelConfig
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata
    from armllm.layers.rotary import RotaryEmbedding

VISION_ROPE = ("mrope_section", "mrope_interleaved")  # positions in pictures; those of text are all the same


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(LlamaConfig):
    """kinds: of each layer. key_heads, value_heads and their sizes: of the gated delta nets.

    norm_offset: added to the weights of all other norms.
    """

    norm_offset: float
    kinds: tuple[str, ...]
    conv_width: int
    key_heads: int
    key_head_dim: int
    value_heads: int
    value_head_dim: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(DeltaNetConfig, QwenMoEConfig):
    """With experts."""


class GatedAttention(LlamaAttention):
    """Normalized queries and keys, and a gate beside each head's query for what the head finds."""

    by_heads = False

    def __init__(
        self, config: DeltaNetConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.q_norm, self.k_norm = (
            RMSNorm(
                weights.scope(name), config.head_dim, config.rms_norm_eps, weight_offset=config.norm_offset
            )
            for name in ("q_norm", "k_norm")
        )

    def qkv_parts(self) -> dict[str, int]:
        """The queries come with their gates."""
        parts = super().qkv_parts()
        return parts | {"q_proj": 2 * parts["q_proj"]}

    def attend(self, x: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What the heads find, with the gates."""
        attention = self.attention
        counts = (2 * attention.num_heads, attention.num_kv_heads, attention.num_kv_heads)
        queries, key, value = self.heads(self.qkv_proj(x)).split_with_sizes(counts, 1)
        pairs = queries.reshape(len(x), attention.num_heads, 2, -1)
        query, gate = self.q_norm(pairs[:, :, 0]), pairs[:, :, 1]
        query, key = self.rotate(places, query, self.k_norm(key))
        return attention(query, key, value, metadata) * torch.sigmoid(gate)


class GatedDeltaNet(RecurrentLayer):
    """A convolution, the gated delta rule, and a norm whose result is gated."""

    def __init__(self, config: DeltaNetConfig, weights: Weights) -> None:
        self.config = config
        self.key_size = config.key_heads * config.key_head_dim
        self.value_size = config.value_heads * config.value_head_dim
        self.load_inputs(config, weights)
        self.conv = CausalConv(
            weights.scope("conv1d"), 2 * self.key_size + self.value_size, config.conv_width
        )
        exact = weights.in_dtype(torch.float32)
        self.decay = decay_of(exact.take("A_log", config.value_heads))
        self.step_bias = exact.take("dt_bias", config.value_heads)
        self.norm = RMSNorm(exact.scope("norm"), config.value_head_dim, config.rms_norm_eps)
        self.out_proj = load_linear(weights, {"out_proj": config.hidden_size}, self.value_size, bias=False)

    def load_inputs(self, config: DeltaNetConfig, weights: Weights) -> None:
        """The products of the hidden states."""
        sizes = {
            "in_proj_qkvz": 2 * self.key_size + 2 * self.value_size,
            "in_proj_ba": 2 * config.value_heads,
        }
        self.in_proj = load_linear(weights, sizes, config.hidden_size, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Query, key and value in a row; gate ``[T, value_size]``; strength and step ``[T, value_heads]``.

        The checkpoint has them by key head, each with its value heads.
        """
        config, share = self.config, self.config.value_heads // self.config.key_heads
        sizes = (2 * self.key_size + 2 * self.value_size, 2 * config.value_heads)
        mixed, small = self.in_proj(x).split_with_sizes(sizes, 1)
        values = share * config.value_head_dim
        query, key, value, gate = mixed.reshape(len(x), config.key_heads, -1).split_with_sizes(
            (config.key_head_dim, config.key_head_dim, values, values), 2
        )
        strength, step = small.reshape(len(x), config.key_heads, 2, share).unbind(2)
        joined = torch.cat([part.flatten(1) for part in (query, key, value)], dim=1)
        return joined, gate.flatten(1), strength.flatten(1), step.flatten(1)

    def state_shapes(self, dtype: torch.dtype) -> list[StateShape]:
        """What the convolution remembers, and the memory of the delta rule in fp32."""
        config = self.config
        return [
            StateShape((config.conv_width - 1, 2 * self.key_size + self.value_size), dtype),
            StateShape(
                (kernels.state_size(config.value_heads, config.key_head_dim, config.value_head_dim),),
                torch.float32,
            ),
        ]

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """``x[T, hidden_size]`` to the same of ``rows``, or of all tokens."""
        del places
        config, (inputs, memory) = self.config, self.sequences(metadata)
        joined, gate, strength, step = self.project(x)
        joined = self.conv(joined, inputs)
        query, key, value = joined.split_with_sizes((self.key_size, self.key_size, self.value_size), 1)
        found = torch.empty(len(x), config.value_heads, config.value_head_dim, dtype=torch.float32)
        kernels.gated_delta_rule(
            found,
            query.view(len(x), config.key_heads, -1),
            key.view(len(x), config.key_heads, -1),
            value.view(len(x), config.value_heads, -1),
            torch.nn.functional.softplus(step.float() + self.step_bias) * self.decay,
            torch.sigmoid(strength.float()),
            memory,
        )
        if rows is not None:
            found, gate = found[rows], gather(gate, rows)
        gated = self.norm(found).flatten(1) * torch.nn.functional.silu(gate.float())
        return self.out_proj(gated.to(x.dtype))


class HybridDecoderLayer(LlamaDecoderLayer):
    """Llama's layer around a gated delta net or gated attention, with norms stored around zero."""

    attention_class = GatedAttention
    delta_class: type[GatedDeltaNet] = GatedDeltaNet

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> LlamaAttention | GatedDeltaNet:
        """What the configuration says of the layer."""
        if config.kinds[index] == LINEAR:
            return self.delta_class(config, weights.scope("linear_attn"))
        return self.attention_class(config, weights.scope(self.attention_name), rotary, index)

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> RMSNorm:
        """A norm whose weight is stored around zero."""
        return RMSNorm(
            weights.scope(name), config.hidden_size, config.rms_norm_eps, weight_offset=config.norm_offset
        )


class Qwen3NextDecoderLayer(HybridDecoderLayer, QwenMoEDecoderLayer):
    """With experts."""


class Qwen3NextForCausalLM(LlamaForCausalLM):
    """Llama's decoder with hybrid layers."""

    layer_class: type[LlamaDecoderLayer] = Qwen3NextDecoderLayer

    @staticmethod
    def read_config(reader: ConfigReader) -> DeltaNetConfig:
        """Qwen3-Next's config.json."""
        common = reader.common(
            "Qwen3NextForCausalLM",
            default_positions=32768,
            default_heads=16,
            default_kv_heads=2,
            default_head_dim=256,
        )
        fields = hybrid_fields(reader, common, default_intermediate=5632)
        sparse = sparse_fields(reader, common["num_layers"], default_size=512)
        return Qwen3NextConfig(
            **fields,
            **routing_fields(reader, num_experts=reader.integer("num_experts", 512), per_token=10),
            **sparse | {"normalize": reader.boolean("norm_topk_prob", default=True)},
            shared_size=reader.integer("shared_expert_intermediate_size", 512),
        )

    @staticmethod
    def ignored_tensors(config: ModelConfig) -> tuple[str, ...]:
        """Also the layers that predict further tokens."""
        return (*LlamaForCausalLM.ignored_tensors(config), "mtp.*", "*.mtp.*")


def hybrid_fields(
    reader: ConfigReader, common: dict[str, Any], *, default_intermediate: int
) -> dict[str, Any]:
    """The fields of a `DeltaNetConfig`."""
    num_layers = common["num_layers"]
    interval = reader.integer("full_attention_interval", 4)
    kinds = read_layer_types(
        reader,
        num_layers,
        [LINEAR if (index + 1) % interval else FULL for index in range(num_layers)],
        known=(FULL, LINEAR),
    )
    rope = read_rope(
        reader,
        common,
        default_partial=0.25,
        ignored=VISION_ROPE,
    )
    bias = reader.boolean("attention_bias", default=False)
    key_heads, value_heads = (
        reader.integer(f"linear_num_{part}_heads", default) for part, default in (("key", 16), ("value", 32))
    )
    if value_heads % key_heads:
        raise reader.error(
            f"linear_num_value_heads {value_heads} is not a multiple of linear_num_key_heads {key_heads}"
        )
    check_recurrence(reader, ("linear_conv_kernel_dim", 4), ("linear_key_head_dim", 128))
    reader.only("attn_output_gate", True)
    for name in ("hidden_act", "output_gate_type"):
        reader.only(name, "silu", "swish")
    return {
        **llama_fields(reader, common, rope=rope, default_intermediate=default_intermediate),
        "windows": (None,) * num_layers,
        "norm_offset": 0.0 if reader.boolean("norm_weights_are_offset", default=False) else 1.0,
        "kinds": tuple(kinds),
        "is_recurrent": LINEAR in kinds,
        "qkv_bias": bias,
        "output_bias": bias,
        "conv_width": reader.integer("linear_conv_kernel_dim", 4),
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_head_dim": reader.integer("linear_key_head_dim", 128),
        "value_head_dim": reader.integer("linear_value_head_dim", 128),
    }
