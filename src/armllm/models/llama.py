"""Llama (Touvron et al. 2023, Grattafiori et al. 2024): pre-norm, rotary, grouped queries, SwiGLU.

The other families are this decoder with other parts; what they change they override.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

from armllm.checkpoint.config import ConfigReader, ModelConfig
from armllm.layers.activation import GATED, plain
from armllm.layers.attention import Attention, AttentionMetadata
from armllm.layers.embedding import Embedding, gather
from armllm.layers.encoder_attention import TextAttention
from armllm.layers.linear import as_float32, load_linear, tied_head
from armllm.layers.mlp import GatedMLP, PlainMLP
from armllm.layers.norm import LayerNorm, RMSNorm
from armllm.layers.recurrent import RecurrentLayer
from armllm.layers.rotary import RopeParameters, RotaryEmbedding
from armllm.layers.stages import current_stage
from armllm.models.rope import read_rope, stretched_length
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig(ModelConfig):
    """Llama's own part of config.json, and head_bias: whether the scores of tokens have one."""

    intermediate_size: int
    activation: str
    rms_norm_eps: float
    rope: RopeParameters
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False


class Mixer(Protocol):
    """What lets a token see others: attention or a recurrent layer."""

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """``x[T, hidden_size]`` to the same of ``rows``, or of all tokens."""


class LlamaAttention:
    """Self-attention of one layer; ``rotary`` None: its tokens don't know their positions.

    by_heads: rows of the three products are heads, and what `project` makes of one depends on no other. So a
    rank needs its own ones only.
    """

    output_name = "o_proj"
    by_heads = True

    def __init__(
        self, config: LlamaConfig, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> None:
        self.sizes = [config.num_heads * config.head_dim] + [config.num_kv_heads * config.head_dim] * 2
        self.qkv_proj = load_linear(
            weights, self.qkv_parts(), config.hidden_size, bias=config.qkv_bias, gathered=not self.by_heads
        )
        self.o_proj = load_linear(
            weights, {self.output_name: config.hidden_size}, self.sizes[0], bias=config.output_bias
        )
        self.rotary = rotary
        kind: Any = TextAttention if config.is_encoder else Attention  # which has its methods for texts
        self.attention: Attention = kind(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            sliding_window=config.windows[index],
            own_inputs=self.by_heads,
            **self.score_options(config),
        )

    def qkv_parts(self) -> dict[str, int]:
        """Names and sizes of the products that give query, key and value."""
        return dict(zip(("q_proj", "k_proj", "v_proj"), self.sizes, strict=True))

    @staticmethod
    def score_options(config: Any) -> dict[str, Any]:
        """What `Attention` does to the scores."""
        return {"scale": config.head_dim**-0.5}

    def __call__(self, x: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        found = self.attend(x, places, metadata).flatten(1)
        return self.o_proj(found if rows is None else gather(found, rows))

    def attend(self, x: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What the heads find, ``[T, heads, head_dim]``; some families multiply it by gates."""
        query, key, value = self.project(x)
        query, key = self.rotate(places, query, key)
        return self.attention(query, key, value, metadata)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query ``[T, heads, head_dim]``, key and value with fewer heads, as `Attention` takes them."""
        query, key, value = self.heads(self.qkv_proj(x)).split_with_sizes(self.attention.counts, 1)
        return query, key, value

    def rotate(self, places: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Query and key with their positions, maybe in place."""
        if self.rotary is not None:
            self.rotary(places, query, key)
        return query, key

    def heads(self, x: Tensor) -> Tensor:
        """``[T, heads * head_dim]`` as ``[T, heads, head_dim]``."""
        head_dim = self.attention.head_dim
        return x.view(x.shape[0], x.shape[1] // head_dim, head_dim)


class LlamaDecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Branch and sum travel apart, because the next norm adds them while it reads them; before the first there
    is no sum.
    """

    attention_class: type[LlamaAttention] = LlamaAttention
    attention_name = "self_attn"
    norm_names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")

    def __init__(self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int) -> None:
        self.self_attn = self.load_attention(config, weights, rotary, index)
        self.mlp = self.load_mlp(config, weights, index)
        self.load_norms(config, weights)

    def load_attention(
        self, config: Any, weights: Weights, rotary: RotaryEmbedding | None, index: int
    ) -> Mixer:
        """What layer ``index`` does between tokens."""
        return self.attention_class(config, weights.scope(self.attention_name), rotary, index)

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that caches or remembers tokens."""
        return (self.self_attn,)

    def load_norms(self, config: Any, weights: Weights) -> None:
        """Those before the branches."""
        self.input_layernorm, self.post_attention_layernorm = (
            self.load_norm(config, weights, name) for name in self.norm_names
        )

    @staticmethod
    def load_mlp(config: Any, weights: Weights, index: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG004
        """The feed-forward part of layer ``index``."""
        return GatedMLP(
            weights.scope("mlp"),
            config.hidden_size,
            config.intermediate_size,
            activation=config.activation,
            bias=config.mlp_bias,
        )

    @staticmethod
    def load_norm(config: Any, weights: Weights, name: str) -> RMSNorm | LayerNorm:
        """One of the norms."""
        return RMSNorm(weights.scope(name), config.hidden_size, config.rms_norm_eps)

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """The branch and the sum so far; with ``rows``, of these tokens only, though all are attended to."""
        x, residual = add_and_normalize(self.input_layernorm, x, residual)
        x = self.self_attn(x, places, metadata, rows)
        if rows is not None:
            residual = gather(residual, rows)
        self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class LlamaForCausalLM:
    """The decoder and its head."""

    layer_class: type[LlamaDecoderLayer] = LlamaDecoderLayer
    names = ("embed_tokens", "layers", "norm")
    head_name = "lm_head"
    ignored: tuple[str, ...] = ("*rotary_emb.inv_freq",)  # which old checkpoints keep

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        self.config = config
        self.rotary = self.load_rotary(config, max_positions)
        self.rotaries = [self.rotary]
        model = self.decoder_weights(weights)
        embedding, layers, norm = self.names
        self.stage = current_stage()
        if self.stage.is_first:
            self.embed_tokens = Embedding(model.scope(embedding), config.vocab_size, config.hidden_size)
        self.layers = [
            self.layer_class(config, model.scope(f"{layers}.{index}"), self.rotary_of(index), index)
            for index in self.stage.layers(config.num_layers)
        ]
        if self.stage.is_last:
            self.norm = self.layer_class.load_norm(config, model, norm)
        if self.stage.is_first:
            self.lm_head = self.load_head(weights)
        mixers = [mixer for layer in self.layers for mixer in layer.mixers]
        caching = [getattr(mixer, "attention", None) for mixer in mixers]
        self.attention_layers = [one for one in caching if isinstance(one, Attention)]
        self.recurrent_layers = [mixer for mixer in mixers if isinstance(mixer, RecurrentLayer)]

    @staticmethod
    def load_rotary(config: Any, max_positions: int) -> RotaryEmbedding:
        """What turns queries and keys of all layers, if `rotary_of` does not say otherwise."""
        return RotaryEmbedding(config.rope, max_positions=max_positions)

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head; Qwen's embedding models and other bare decoders are stored without the prefix."""
        return weights.scope("model", optional=True)

    def load_head(self, weights: Weights) -> Linear:
        """What makes scores of final states."""
        config = self.config
        if config.tie_word_embeddings and self.head_repeats(weights):
            bias = weights.take(f"{self.head_name}.bias", config.vocab_size) if config.head_bias else None
            return tied_head(self.embed_tokens.weight, bias)
        return load_linear(
            weights,
            {self.head_name: config.vocab_size},
            config.hidden_size,
            bias=config.head_bias,
            first_only=True,
        )

    def head_repeats(self, weights: Weights) -> bool:
        """Whether the head is the table of tokens; transformers 5 says no where another one is stored."""
        table = self.decoder_weights(weights).scope(self.names[0])
        return not self.config.generates or weights.repeats(f"{self.head_name}.weight", table, "weight")

    def rotary_of(self, index: int) -> RotaryEmbedding | None:  # noqa: ARG002 - for families that have several
        """What layer ``index`` turns queries and keys with."""
        return self.rotary

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Llama's config.json."""
        bias = reader.boolean("attention_bias", default=False)
        fields = llama_fields(
            reader, reader.common("LlamaForCausalLM", default_eos=2, default_positions=2048)
        )
        return LlamaConfig(
            **fields,
            windows=same_everywhere(reader, fields["num_layers"], None),
            qkv_bias=bias,
            output_bias=bias,
            mlp_bias=reader.boolean("mlp_bias", default=False),
        )

    @classmethod
    def ignored_tensors(cls, config: ModelConfig) -> tuple[str, ...]:
        """A tied head may be stored once more."""
        return (*cls.ignored, *([f"*{cls.head_name}.weight"] if config.tie_word_embeddings else []))

    def __call__(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states of ``rows``, or of all tokens."""
        return self.advance((), token_ids, places, metadata, rows)[0]

    def advance(
        self,
        states: tuple[Tensor, ...],
        token_ids: Tensor,
        places: Tensor,
        metadata: AttentionMetadata,
        rows: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Branch and sum after the layers of this stage, from those of the one before."""
        x, residual = states or (self.first_states(token_ids, places), None)
        for layer in self.layers[:-1]:
            x, residual = layer(x, residual, places, metadata, rows=None)
        # After the last layer's attention nothing looks at the other tokens any more.
        x, residual = self.layers[-1](x, residual, places, metadata, rows if self.stage.is_last else None)
        if not self.stage.is_last:
            return x, residual
        self.norm.add(x, residual)
        return (x,)

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Where tokens stand in the tables of the rotary embedding."""
        return self.rotary.rows(positions, total_lens)

    def first_states(self, token_ids: Tensor, places: Tensor) -> Tensor:  # noqa: ARG002 - for learned positions
        """What the first layer sees of tokens at these places."""
        return self.embed(token_ids)

    def embed(self, token_ids: Tensor) -> Tensor:
        """What the first layer sees."""
        return self.embed_tokens(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return as_float32(self.lm_head(hidden))


def add_and_normalize(norm: RMSNorm | LayerNorm, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum; before the first layer, x is the sum."""
    if residual is None:
        return norm(x), x
    norm.add(x, residual)
    return x, residual


def plain_mlp(
    config: Any,
    weights: Weights,
    names: tuple[str, str],
    activation: Callable[[Tensor], Tensor] | None = None,
) -> PlainMLP:
    """A feed-forward part without gates; ``names``: of its matrices. ``activation``: not the named one."""
    return PlainMLP(
        weights.scope("mlp"),
        config.hidden_size,
        config.intermediate_size,
        activation=activation or plain(config.activation),
        bias=config.mlp_bias,
        names=names,
    )


def llama_fields(
    reader: ConfigReader,
    common: dict[str, Any],
    *,
    default_eps: float = 1e-6,
    default_theta: float = 10000.0,
    rope: RopeParameters | None = None,
    eps_name: str = "rms_norm_eps",
    activation: tuple[str, str] | tuple[str, str, tuple[str, ...]] = ("hidden_act", "silu"),
    default_intermediate: int | None = None,
) -> dict[str, Any]:
    """What all Llama-like families have, but ``windows`` and biases: ``common`` and the fields beside it.

    ``rope``: where the family has read it already. ``eps_name``: the key of what norms add to a variance.
    ``activation``: its key and default, and the known ones where the feed-forward part is not gated.
    """
    key, default, *known = activation
    rope = rope or read_rope(
        reader,
        common,
        default_theta=default_theta,
    )
    return common | {
        "max_model_len": stretched_length(rope, common["max_position_embeddings"]),
        "rope": rope,
        "rope_switch_length": rope.switch_length,
        "intermediate_size": reader.integer("intermediate_size", default_intermediate),
        "activation": reader.choice(key, default, *(known or [GATED])),
        "rms_norm_eps": reader.number(eps_name, default_eps),
    }
