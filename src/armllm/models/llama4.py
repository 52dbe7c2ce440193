"""Llama 4's text model (Meta 2025): attention in chunks, and an expert beside one for all tokens.

Some layers don't know positions: they see all tokens, and queries of late ones grow.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.layers.linear import load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.moe import (
    GATES_AND_UPS,
    are_separate,
    combined,
    load_experts,
    own_rows,
    transposed_experts,
)
from armllm.layers.norm import PlainNorm
from armllm.layers.ranks import building_for
from armllm.layers.rotary import RotaryEmbedding, Temperature
from armllm.models.llama import (
    LlamaAttention,
    LlamaConfig,
    LlamaDecoderLayer,
    LlamaForCausalLM,
    llama_fields,
)
from armllm.models.mixtral import routing_fields
from armllm.models.rope import read_rope
from armllm.models.text_part import TextPart
from armllm.models.windows import FULL, read_layer_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.moe import Experts

CHUNKED = "chunked_attention"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama4Config(LlamaConfig):
    """rotates, chunks, sparse: per layer, whether it knows positions, its chunk, whether it has experts.

    temperature: of layers without positions, by how much queries grow and after how many tokens; None: never.
    intermediate_size is that of experts, dense_size that of layers without.
    """

    rotates: tuple[bool, ...]
    chunks: tuple[int | None, ...]
    sparse: tuple[bool, ...]
    qk_norm: bool
    temperature: tuple[float, float] | None
    dense_size: int
    num_experts: int
    num_experts_per_tok: int


class Llama4Attention(LlamaAttention):
    """Queries and keys that know positions may be normalized after they are rotated."""

    def __init__(
        self, config: Llama4Config, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        super().__init__(config, weights, rotary, index)
        self.norm = None
        if config.qk_norm and config.rotates[index]:
            self.norm = PlainNorm(config.head_dim, config.rms_norm_eps, weights.dtype)
        chunk = config.chunks[index]
        if chunk is not None:
            self.attention.use_chunks(chunk)

    def rotate(self, places: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key as they are compared."""
        query, key = super().rotate(places, query, key)
        return (query, key) if self.norm is None else (self.norm(query), self.norm(key))


class Llama4MoE:
    """Experts, whose inputs are multiplied by the sigmoid of their score, and one for all tokens."""

    def __init__(self, config: Llama4Config, weights: Weights) -> None:
        with building_for(None):  # as layers.moe.Router
            self.router = load_linear(weights, {"router": config.num_experts}, config.hidden_size, bias=False)
        self.per_token = config.num_experts_per_tok
        self.experts = _load_experts(config, weights)
        self.shared = GatedMLP(
            weights.scope("shared_expert"),
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
        )

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, hidden_size]`` to the same shape."""
        scores, expert_ids = self.router(x).topk(self.per_token, dim=-1)
        scores = scores.float().sigmoid().to(x.dtype)
        inputs = (x.unsqueeze(1) * scores.unsqueeze(2)).flatten(0, 1)
        expert_ids = expert_ids.view(-1, 1)
        found = self.experts(inputs, expert_ids, torch.ones_like(expert_ids, dtype=torch.float32))
        if self.per_token > 1:
            found = found.view(len(x), self.per_token, x.shape[1]).sum(1)
        return self.shared(x).add_(found)


def _load_experts(config: Llama4Config, weights: Weights) -> Experts:
    """From stacked tensors with the inputs first, as the hub has them, or one by one, as quantizers write."""
    hidden, size, count = config.hidden_size, config.intermediate_size, config.num_experts
    if are_separate(weights.scope("experts")):
        return load_experts(weights, count, hidden, size, activation=config.activation)
    gate_up = transposed_experts(
        weights, "experts.gate_up_proj", count, (2 * size, hidden), own=own_rows(GATES_AND_UPS)
    )
    down = transposed_experts(weights, "experts.down_proj", count, (hidden, size), own=own_rows())
    return combined(gate_up, down, sizes=(hidden, size), activation=config.activation)


class Llama4DecoderLayer(LlamaDecoderLayer):
    """Llama's layer, with experts in some."""

    attention_class = Llama4Attention

    @staticmethod
    def load_mlp(config: Llama4Config, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:
        """Experts with a shared one, or an ordinary feed-forward part."""
        block = weights.scope("feed_forward")
        if config.sparse[index]:
            return Llama4MoE(config, block)
        return GatedMLP(block, config.hidden_size, config.dense_size, activation=config.activation)


class Llama4ForCausalLM(LlamaForCausalLM):
    """Llama's decoder with Llama 4's layers."""

    config: Llama4Config
    layer_class = Llama4DecoderLayer

    def __init__(self, config: Llama4Config, weights: Weights, *, max_positions: int) -> None:
        self.temperature = None
        if config.temperature is not None:
            self.temperature = Temperature(
                config.rope, *config.temperature, first=1, max_positions=max_positions
            )
        super().__init__(config, weights, max_positions=max_positions)
        if self.temperature is not None:
            self.rotaries.append(self.temperature)

    def rotary_of(self, index: int) -> RotaryEmbedding | None:
        """What layers without positions have in its place, if anything."""
        return self.rotary if self.config.rotates[index] else self.temperature

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """The same rows of both tables."""
        if self.temperature is not None:
            self.temperature.rows(positions, total_lens)
        return super().places(positions, total_lens)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Llama4Config:
        """The config.json of a text model."""
        return read_text_config(reader, cls.__name__)


class Llama4ForConditionalGeneration(TextPart, Llama4ForCausalLM):
    """The text part of the model that also sees."""

    text_type = "llama4_text"
    towers = ("vision_model.*", "multi_modal_projector.*")
    has_head = True
    head_name = "language_model.lm_head"

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("language_model.model")


def read_text_config(reader: ConfigReader, architecture: str) -> Llama4Config:
    """Llama 4's text configuration, with the defaults of its class in transformers."""
    common = reader.common(
        architecture,
        default_eos=2,
        default_positions=131072,
        default_heads=40,
        default_kv_heads=8,
        default_head_dim=None if reader.has("head_dim") else 128,
        default_sizes={"hidden_size": 5120, "num_hidden_layers": 48, "vocab_size": 202048},
    )
    layers = common["num_layers"]
    rope = read_rope(
        reader,
        common,
        default_theta=500000.0,
        interleaved=True,
    )
    bias = reader.boolean("attention_bias", default=False)
    rotates = _rotates(reader, layers)
    return Llama4Config(
        **llama_fields(reader, common, default_eps=1e-5, rope=rope, default_intermediate=8192),
        **routing_fields(reader, num_experts=reader.integer("num_local_experts", 16), per_token=1),
        windows=(None,) * layers,
        rotates=rotates,
        chunks=_chunks(reader, rotates),
        sparse=_sparse(reader, layers),
        qk_norm=reader.boolean("use_qk_norm", default=True),
        temperature=_temperature(reader),
        dense_size=reader.integer("intermediate_size_mlp", 16384),
        qkv_bias=bias,
        output_bias=bias,
    )


def _rotates(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers know positions: all but every fourth, where there is no list, or an empty one."""
    interval = reader.integer("no_rope_layer_interval", 4)
    rotates = reader.get("no_rope_layers", None) or [
        int((index + 1) % interval != 0) for index in range(layers)
    ]
    if (
        not isinstance(rotates, list)
        or len(rotates) < layers
        or any(isinstance(one, (list, dict)) or one not in (0, 1) for one in rotates)
    ):
        raise reader.error(f"no_rope_layers must be a list of {layers} times 0 (no positions) or 1")
    return tuple(map(bool, rotates[:layers]))


def _chunks(reader: ConfigReader, rotates: tuple[bool, ...]) -> tuple[int | None, ...]:
    """The length of the chunks of each layer; None: it sees all tokens."""
    default = [CHUNKED if knows_positions else FULL for knows_positions in rotates]
    kinds = read_layer_types(reader, len(rotates), default, (FULL, CHUNKED))
    size = reader.optional_integer("attention_chunk_size", 8192)
    if size is None and CHUNKED in kinds:
        raise reader.error(f"layer_types has {CHUNKED}, but there is no attention_chunk_size")
    return tuple(size if kind == CHUNKED else None for kind in kinds)


def _sparse(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Which layers have experts."""
    step = reader.integer("interleave_moe_layer_step", 1)
    indices = reader.get("moe_layers", list(range(step - 1, layers, step)))
    if not isinstance(indices, list) or any(type(index) is not int for index in indices):
        raise reader.error(f"moe_layers must be a list of numbers of layers, not {indices!r}")
    return tuple(index in indices for index in range(layers))


def _temperature(reader: ConfigReader) -> tuple[float, float] | None:
    """attn_scale and floor_scale, if they are in use; the first checkpoints say 4 for yes."""
    in_use = reader.get("attn_temperature_tuning", True)
    if not isinstance(in_use, int) or in_use < 0:
        raise reader.error(f"attn_temperature_tuning must be true or false, not {in_use!r}")
    values = reader.number("attn_scale", 0.1), reader.number("floor_scale", 8192)
    return values if in_use else None
