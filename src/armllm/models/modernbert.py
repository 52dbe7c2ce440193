"""ModernBERT (Warner et al. 2024): pre-norm, rotary, gated, windows in most layers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.layers.activation import GATED, PLAIN, plain
from armllm.layers.embedding import Embedding, gather
from armllm.layers.encoder_attention import EncoderAttention
from armllm.layers.linear import load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.norm import LayerNorm
from armllm.layers.rotary import RopeParameters, RotaryEmbedding
from armllm.models.encoder import Encoder, EncoderConfig, encoder_fields, read_classes
from armllm.models.rope import read_one
from armllm.models.windows import FULL, SLIDING, read_layer_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata

# the kind of layer, the key of its base in older files, and its default
BASES = ((FULL, "global_rope_theta", 160_000.0), (SLIDING, "local_rope_theta", 10_000.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """kinds and ropes: of the layers; reach: tokens on either side that a window has."""

    kinds: tuple[str, ...]
    ropes: dict[str, RopeParameters]
    reach: int
    attention_bias: bool
    mlp_bias: bool
    norm_bias: bool
    head_bias: bool
    head_activation: str


class ModernBertLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); the first layer's input is normalized already."""

    def __init__(
        self, config: ModernBertConfig, weights: Weights, rotary: RotaryEmbedding, index: int
    ) -> None:
        size, bias = config.hidden_size, config.attention_bias
        self.heads = config.num_heads, config.head_dim
        self.attention_norm = load_norm(config, weights, "attn_norm") if index else None
        self.qkv_proj = load_linear(weights, {"attn.Wqkv": 3 * size}, size, bias=bias)
        self.out_proj = load_linear(weights, {"attn.Wo": size}, size, bias=bias)
        self.mlp_norm = load_norm(config, weights, "mlp_norm")
        self.mlp = GatedMLP(
            weights.scope("mlp"),
            size,
            config.intermediate_size,
            activation=config.activation,
            bias=config.mlp_bias,
            names=("Wi",),
            down="Wo",
        )
        self.rotary = rotary
        self.attention = EncoderAttention(
            num_heads=config.num_heads,
            head_dim=config.head_dim,
            reach=config.reach if config.kinds[index] == SLIDING else None,
        )

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """States ``[T, hidden_size]``; with ``rows``, of these tokens only."""
        qkv = self.qkv_proj(x if self.attention_norm is None else self.attention_norm(x))
        query, key, value = qkv.view(x.shape[0], 3, *self.heads).unbind(1)
        self.rotary(places, query, key)
        attended = self.attention(query, key, value, metadata.query_start_loc).flatten(1)
        if rows is not None:
            x, attended = gather(x, rows), gather(attended, rows)
        attended = self.out_proj(attended)
        self.mlp_norm.add(attended, x)
        return self.mlp(attended).add_(x)


class ModernBertModel(Encoder):
    """The encoder."""

    prefixes = ("model",)
    ignored = ("head.*", "decoder.*")
    config: ModernBertConfig

    def load_embeddings(self, weights: Weights, max_positions: int) -> None:
        """One table and its norm, and rotary embeddings for both kinds of layers."""
        config = self.config
        self.word_embeddings = Embedding(
            weights.scope("tok_embeddings"), config.vocab_size, config.hidden_size
        )
        self.embedding_norm = load_norm(config, weights, "norm")
        self.by_kind = {
            kind: RotaryEmbedding(rope, max_positions=max_positions) for kind, rope in config.ropes.items()
        }
        self.rotaries = [*self.by_kind.values()]

    def load_layers(self, weights: Weights) -> None:
        """All layers and the last norm."""
        config = self.config
        self.blocks = [
            ModernBertLayer(config, weights.scope(f"layers.{index}"), self.by_kind[kind], index)
            for index, kind in enumerate(config.kinds)
        ]
        self.final_norm = load_norm(config, weights, "final_norm")

    @classmethod
    def read_config(cls, reader: ConfigReader) -> ModernBertConfig:
        """ModernBERT's config.json."""
        fields = encoder_fields(
            reader, cls.__name__, layers=("num_hidden_layers", 22), vocab_size=50368, positions=8192
        )
        count = fields["num_layers"]
        every = reader.integer("global_attn_every_n_layers", 3)
        kinds = read_layer_types(
            reader, count, [SLIDING if index % every else FULL for index in range(count)]
        )
        pooling = reader.choice("classifier_pooling", "cls", ("cls", "mean"))
        if fields["classes"] is not None:
            fields["classes"] = read_classes(reader, pooling)
        return ModernBertConfig(
            **fields,
            intermediate_size=reader.integer("intermediate_size", 1152),
            activation=reader.choice("hidden_activation", "gelu", GATED),
            norm_eps=reader.number("norm_eps", 1e-5),
            kinds=tuple(kinds),
            ropes=read_ropes(reader, fields["head_dim"], fields["max_position_embeddings"]),
            reach=reader.integer("local_attention", 128) // 2,
            attention_bias=reader.boolean("attention_bias", default=False),
            mlp_bias=reader.boolean("mlp_bias", default=False),
            norm_bias=reader.boolean("norm_bias", default=False),
            head_bias=reader.boolean("classifier_bias", default=False),
            head_activation=reader.choice("classifier_activation", "gelu", PLAIN),
        )

    @classmethod
    def ignored_tensors(cls, config: Any) -> tuple[str, ...]:
        """Heads that this class does not have."""
        return () if config.classes is not None else cls.ignored

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Rows of the tables of both kinds of layers."""
        for rotary in self.rotaries:
            places = rotary.rows(positions, total_lens)
        return places

    def encode(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states of ``rows``, or of all tokens."""
        x = self.embedding_norm(self.word_embeddings(token_ids))
        for block in self.blocks[:-1]:
            x = block(x, places, metadata, rows=None)
        return self.final_norm(self.blocks[-1](x, places, metadata, rows))


class ModernBertForMaskedLM(ModernBertModel):
    """The same as it was trained; the head is not loaded."""


class ModernBertForSequenceClassification(ModernBertModel):
    """The same with classes."""

    def load_head(self, weights: Weights, body: Weights, num_labels: int) -> Callable[[Tensor], Tensor]:
        """A dense layer with activation and norm before the classifier."""
        del body
        config, size = self.config, self.config.hidden_size
        dense = load_linear(weights, {"head.dense": size}, size, bias=config.head_bias)
        activation = plain(config.head_activation)
        norm = load_norm(config, weights, "head.norm")
        classifier = load_linear(weights, {"classifier": num_labels}, size, bias=True)
        return lambda pooled: classifier(norm(activation(dense(pooled))))


def load_norm(config: ModernBertConfig, weights: Weights, name: str) -> LayerNorm:
    """One of the norms."""
    return LayerNorm(
        weights.scope(name), config.hidden_size, config.norm_eps, affine=True, bias=config.norm_bias
    )


def read_ropes(reader: ConfigReader, head_dim: int, positions: int) -> dict[str, RopeParameters]:
    """Rotary parameters by the kind of layer, in either spelling."""
    both = reader.get("rope_parameters", {})
    scaling = reader.get("rope_scaling", {})
    if not isinstance(both, dict) or set(both) - {FULL, SLIDING}:
        raise reader.error(f"rope_parameters must hold the objects {FULL} and {SLIDING}, not {both!r}")
    if not isinstance(scaling, dict) or not all(isinstance(one or {}, dict) for one in both.values()):
        raise reader.error("rope_parameters and rope_scaling must hold objects")
    ropes = {}
    for kind, key, default in BASES:
        values = {**(both.get(kind) or {}), **scaling}
        theta = reader.number(key, default)
        ropes[kind] = read_one(
            reader, f"rope_parameters.{kind}", values, theta=theta, head_dim=head_dim, positions=positions
        )
        if ropes[kind].switch_length is not None or ropes[kind].rope_type == "dynamic":
            raise reader.error(f"rope_type {ropes[kind].rope_type!r} is not supported for ModernBERT")
    return ropes
