"""OPT (Zhang et al. 2022): learned positions, layer norms, biases, a plain feed-forward part."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.checkpoint.config import ConfigReader, ModelConfig
from armllm.layers.activation import PLAIN, plain
from armllm.layers.attention import Attention, AttentionMetadata
from armllm.layers.embedding import Embedding, gather
from armllm.layers.linear import as_float32, load_linear, tied_head
from armllm.layers.mlp import PlainMLP
from armllm.layers.norm import LayerNorm
from armllm.layers.stages import current_stage
from armllm.models.windows import same_everywhere

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear
    from armllm.layers.recurrent import RecurrentLayer
    from armllm.layers.rotary import RotaryEmbedding

# The table of positions begins with two rows that fairseq kept for padding.
POSITION_OFFSET = 2
EPS = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class OPTConfig(ModelConfig):
    """embedding_size: of the embeddings, which are projected if it is not hidden_size."""

    ffn_size: int
    embedding_size: int
    activation: str
    bias: bool
    affine: bool
    norm_first: bool
    final_norm: bool

    @property
    def final_size(self) -> int:
        """The final states are projected as embeddings are."""
        return self.embedding_size


class OPTDecoderLayer:
    """Attention and feed-forward part; each branch is normalized before, in OPT-350m the sum after it."""

    def __init__(self, config: OPTConfig, weights: Weights) -> None:
        hidden_size = config.hidden_size
        attention = weights.scope("self_attn")
        parts = dict.fromkeys(("q_proj", "k_proj", "v_proj"), hidden_size)
        self.qkv_proj = load_linear(attention, parts, hidden_size, bias=config.bias)
        self.out_proj = load_linear(attention, {"out_proj": hidden_size}, hidden_size, bias=config.bias)
        self.attention = Attention(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        )
        self.mlp = PlainMLP(
            weights,
            hidden_size,
            config.ffn_size,
            activation=plain(config.activation),
            bias=config.bias,
            names=("fc1", "fc2"),
        )
        self.self_attn_layer_norm, self.final_layer_norm = (
            LayerNorm(weights.scope(name), hidden_size, EPS, affine=config.affine)
            for name in ("self_attn_layer_norm", "final_layer_norm")
        )
        self.norm_first = config.norm_first

    def __call__(self, x: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """The sum after both branches; with ``rows``, of these tokens only, though all are attended to."""
        branch = self.attend(self.self_attn_layer_norm(x) if self.norm_first else x, metadata, rows)
        x = (x if rows is None else gather(x, rows)) + branch
        if not self.norm_first:
            x = self.self_attn_layer_norm(x)
        branch = self.final_layer_norm(x) if self.norm_first else x
        x = x + self.mlp(branch)
        return x if self.norm_first else self.final_layer_norm(x)

    def attend(self, x: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """Self-attention."""
        query, key, value = (
            part.view(x.shape[0], self.attention.num_heads, self.attention.head_dim)
            for part in self.qkv_proj(x).chunk(3, dim=-1)
        )
        attended = self.attention(query, key, value, metadata).flatten(1)
        return self.out_proj(attended if rows is None else gather(attended, rows))


class OPTForCausalLM:
    """The decoder and its head."""

    def __init__(self, config: OPTConfig, weights: Weights, *, max_positions: int) -> None:
        del max_positions  # the table of positions has the checkpoint's length
        self.config = config
        self.rotaries: list[RotaryEmbedding] = []
        decoder = weights.scope("model", optional=True).scope("decoder")
        hidden_size, embedding_size = config.hidden_size, config.embedding_size
        self.stage = current_stage()
        self.project_in: Linear | None = None
        self.project_out: Linear | None = None
        if self.stage.is_first:
            self._load_ends(weights, decoder, hidden_size, embedding_size)
        self.layers = [
            OPTDecoderLayer(config, decoder.scope(f"layers.{index}"))
            for index in self.stage.layers(config.num_layers)
        ]
        self.final_layer_norm = (
            LayerNorm(decoder.scope("final_layer_norm"), hidden_size, EPS, affine=config.affine)
            if config.final_norm and self.stage.is_last
            else None
        )
        if embedding_size != hidden_size and self.stage.is_last:
            self.project_out = load_linear(decoder, {"project_out": embedding_size}, hidden_size, bias=False)
        self.attention_layers = [layer.attention for layer in self.layers]
        self.recurrent_layers: list[RecurrentLayer] = []

    def _load_ends(self, weights: Weights, decoder: Weights, hidden_size: int, embedding_size: int) -> None:
        """What makes the first states of tokens, and scores of the last ones."""
        config = self.config
        self.embed_tokens = Embedding(decoder.scope("embed_tokens"), config.vocab_size, embedding_size)
        self.embed_positions = Embedding(
            decoder.scope("embed_positions"), config.max_position_embeddings + POSITION_OFFSET, hidden_size
        )
        if embedding_size != hidden_size:
            self.project_in = load_linear(decoder, {"project_in": hidden_size}, embedding_size, bias=False)
        self.lm_head = (
            tied_head(self.embed_tokens.weight)
            if config.tie_word_embeddings
            and weights.repeats("lm_head.weight", decoder, "embed_tokens.weight")
            else load_linear(
                weights, {"lm_head": config.vocab_size}, embedding_size, bias=False, first_only=True
            )
        )

    @staticmethod
    def read_config(reader: ConfigReader) -> OPTConfig:
        """OPT's config.json."""
        common = reader.whole_heads(
            "OPTForCausalLM", default_eos=2, default_positions=2048, default_tied=True
        )
        reader.only("num_key_value_heads", common["num_heads"])
        norm_first = reader.boolean("do_layer_norm_before", default=True)
        removed = reader.boolean("_remove_final_layer_norm", default=False)
        return OPTConfig(
            **common,
            windows=same_everywhere(reader, common["num_layers"], None),
            ffn_size=reader.integer("ffn_dim"),
            embedding_size=reader.integer("word_embed_proj_dim", common["hidden_size"]),
            activation=reader.choice("activation_function", "relu", PLAIN),
            bias=reader.boolean("enable_bias", default=True),
            affine=reader.boolean("layer_norm_elementwise_affine", default=True),
            norm_first=norm_first,
            final_norm=norm_first and not removed,
        )

    @staticmethod
    def ignored_tensors(config: OPTConfig) -> tuple[str, ...]:
        """A tied head may be stored once more."""
        return ("*lm_head.weight",) if config.tie_word_embeddings else ()

    @staticmethod
    def places(positions: Tensor, total_lens: Tensor) -> Tensor:  # noqa: ARG004 - no length changes them
        """Rows of the table of positions."""
        return positions + POSITION_OFFSET

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
        """The states after the layers of this stage."""
        (x,) = states or (self.embed(token_ids, places),)
        for layer in self.layers[:-1]:
            x = layer(x, metadata, rows=None)
        # After the last layer's attention nothing looks at the other tokens any more.
        x = self.layers[-1](x, metadata, rows if self.stage.is_last else None)
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        return (x if self.project_out is None else self.project_out(x),)

    def embed(self, token_ids: Tensor, places: Tensor) -> Tensor:
        """What the first layer sees."""
        x = self.embed_tokens(token_ids)
        if self.project_in is not None:
            x = self.project_in(x)
        return x + self.embed_positions(places)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token of the vocabulary."""
        return as_float32(self.lm_head(hidden))
