"""Nomic Embed (Nussbaum et al. 2024): BERT with rotary positions, a gated feed-forward part, no biases."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from armllm.layers.activation import GATED
from armllm.layers.embedding import Embedding, gather
from armllm.layers.encoder_attention import EncoderAttention
from armllm.layers.linear import load_linear
from armllm.layers.mlp import GatedMLP
from armllm.layers.norm import LayerNorm
from armllm.layers.rotary import RopeParameters, RotaryEmbedding
from armllm.models.bert import BertForSequenceClassification
from armllm.models.encoder import Encoder, EncoderConfig, encoder_fields
from armllm.models.rope import read_rope

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata


@dataclasses.dataclass(frozen=True, kw_only=True)
class RotaryEncoderConfig(EncoderConfig):
    """rope: of all layers. attention_bias: of the four products of attention."""

    rope: RopeParameters
    attention_bias: bool


class RotaryNames(NamedTuple):
    """What tensors are called: the layers and their parts, and the norm of the embeddings."""

    layer: str
    qkv: str
    attended: str
    attention_norm: str
    output_norm: str
    embedding_norm: str


class RotaryPostNormLayer:
    """x = norm(x + attention(x)), then norm(x + mlp(x)), with rotary positions."""

    def __init__(
        self,
        config: RotaryEncoderConfig,
        weights: Weights,
        names: RotaryNames,
        rotary: RotaryEmbedding,
        mlp: Callable[[Tensor], Tensor],
    ) -> None:
        size, bias = config.hidden_size, config.attention_bias
        self.heads = config.num_heads, config.head_dim
        self.rotary = rotary
        self.qkv_proj = load_linear(weights, {names.qkv: 3 * size}, size, bias=bias)
        self.attention = EncoderAttention(num_heads=config.num_heads, head_dim=config.head_dim)
        self.out_proj = load_linear(weights, {names.attended: size}, size, bias=bias)
        self.mlp = mlp
        self.attention_norm, self.output_norm = (
            LayerNorm(weights.scope(name), size, config.norm_eps, affine=True)
            for name in (names.attention_norm, names.output_norm)
        )

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """States ``[T, hidden_size]``; with ``rows``, of these tokens only, though all are attended to."""
        query, key, value = self.qkv_proj(x).view(x.shape[0], 3, *self.heads).unbind(1)
        self.rotary(places, query, key)
        attended = self.attention(query, key, value, metadata.query_start_loc).flatten(1)
        if rows is not None:
            x, attended = gather(x, rows), gather(attended, rows)
        attended = self.out_proj(attended)
        self.attention_norm.add(attended, x)
        out = self.mlp(attended)
        self.output_norm.add(out, attended)
        return out


class RotaryEncoder(Encoder, abc.ABC):
    """An encoder whose layers turn queries and keys. A family names its tensors and loads its MLP."""

    rotary_names: ClassVar[RotaryNames]
    config: RotaryEncoderConfig

    @staticmethod
    @abc.abstractmethod
    def load_mlp(config: Any, weights: Weights) -> Callable[[Tensor], Tensor]:
        """The feed-forward part below ``weights``."""

    def load_embeddings(self, weights: Weights, max_positions: int) -> None:
        """Tables of words and segments, and a rotary embedding."""
        config, size = self.config, self.config.hidden_size
        self.word_embeddings = Embedding(weights.scope("word_embeddings"), config.vocab_size, size)
        self.token_type_embeddings = None
        if config.type_vocab_size:
            types = weights.scope("token_type_embeddings")
            self.token_type_embeddings = Embedding(types, config.type_vocab_size, size)
        self.rotary = RotaryEmbedding(config.rope, max_positions=max_positions)
        self.rotaries = [self.rotary]

    def load_layers(self, weights: Weights) -> None:
        """The norm of the embeddings and all layers."""
        config, names = self.config, self.rotary_names
        self.embedding_norm = LayerNorm(
            weights.scope(names.embedding_norm), config.hidden_size, config.norm_eps, affine=True
        )
        scopes = (weights.scope(f"{names.layer}.{index}") for index in range(config.num_layers))
        self.blocks = [
            RotaryPostNormLayer(config, scope, names, self.rotary, self.load_mlp(config, scope.scope("mlp")))
            for scope in scopes
        ]

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Rows of the rotary table."""
        return self.rotary.rows(positions, total_lens)

    def encode(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states of ``rows``, or of all tokens."""
        x = self.embedding_norm(self.embed_words(token_ids, metadata))
        for block in self.blocks[:-1]:
            x = block(x, places, metadata, rows=None)
        return self.blocks[-1](x, places, metadata, rows)


class NomicBertModel(RotaryEncoder):
    """The encoder."""

    prefixes = ("nomic_bert",)
    ignored = ("cls.*",)
    rotary_names = RotaryNames(
        layer="encoder.layers",
        qkv="attn.Wqkv",
        attended="attn.out_proj",
        attention_norm="norm1",
        output_norm="norm2",
        embedding_norm="emb_ln",
    )

    @staticmethod
    def load_mlp(config: Any, weights: Weights) -> GatedMLP:
        """Gate fc12, up fc11, down fc2."""
        size, inner = config.hidden_size, config.intermediate_size
        names = ("fc12", "fc11")
        return GatedMLP(weights, size, inner, activation=config.activation, names=names, down="fc2")

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        """NomicBERT's config.json, as transformers writes it or as the authors' own code did."""
        if "n_embd" in reader.values:
            return cls._read_first_form(reader)
        fields = encoder_fields(reader, cls.__name__, vocab_size=30528, positions=2048)
        if reader.integer("head_dim", fields["head_dim"]) != fields["head_dim"]:
            raise reader.error("head_dim is not hidden_size by num_attention_heads")
        return RotaryEncoderConfig(
            **fields,
            **rotary_fields(reader, fields, default_activation="silu", default_theta=1000.0),
            type_vocab_size=reader.integer("type_vocab_size", 2),
            attention_bias=False,
        )

    @classmethod
    def _read_first_form(cls, reader: ConfigReader) -> RotaryEncoderConfig:
        """GPT-2's names. The authors' code goes beyond the length of training, by other frequencies."""
        for name in ("num_experts", "moe_every_n_layers"):  # of Nomic Embed v2
            reader.only(name, 0)
        for name in ("prenorm", "use_rms_norm", "parallel_block", "causal", "rotary_emb_interleaved"):
            reader.only(name, False, None)
        for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "scale_attn_by_inverse_layer_idx"):
            reader.only(name, False)
        for name in ("rotary_scaling_factor", "rotary_emb_scale_base"):
            reader.only(name, None, 0)
        reader.only("rotary_emb_fraction", 1.0)
        reader.only("activation_function", "swiglu")
        fields = encoder_fields(
            reader,
            cls.__name__,
            hidden=("n_embd", 768),
            layers=("n_layer", 12),
            heads=("n_head", 12),
            vocab_size=30528,
        )
        length = reader.integer("n_positions", 2048)
        trained = reader.optional_integer("max_trained_positions", None)
        length = min(length, trained or length)
        theta = reader.number("rotary_emb_base", 1000.0)
        return RotaryEncoderConfig(
            **fields | {"max_position_embeddings": length, "max_model_len": length},
            intermediate_size=reader.integer("n_inner", 4 * fields["hidden_size"]),
            activation="silu",
            norm_eps=reader.number("layer_norm_epsilon", 1e-12),
            rope=RopeParameters(rotary_dim=fields["head_dim"], theta=theta),
            type_vocab_size=reader.integer("type_vocab_size", 2),
            attention_bias=False,
        )


class NomicBertForMaskedLM(NomicBertModel):
    """The same as it was trained; the head is not loaded."""


class NomicBertForSequenceClassification(NomicBertModel):
    """The same with classes, by BERT's head."""

    load_head = BertForSequenceClassification.load_head


def rotary_fields(
    reader: ConfigReader, fields: dict[str, Any], *, default_activation: str, default_theta: float
) -> dict[str, Any]:
    """The feed-forward part, norms and rotary embedding, under transformers' names."""
    rope = read_rope(
        reader,
        fields,
        default_theta=default_theta,
    )
    if rope.switch_length is not None or rope.rope_type == "dynamic":
        raise reader.error(f"rope_type {rope.rope_type!r} is not supported for this architecture")
    return {
        "intermediate_size": reader.integer("intermediate_size", 3072),
        "activation": reader.choice("hidden_act", default_activation, GATED),
        "norm_eps": reader.number("layer_norm_eps", 1e-12),
        "rope": rope,
    }
