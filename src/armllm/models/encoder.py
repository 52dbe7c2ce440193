"""What encoders share: BERT's layer (Devlin et al. 2019), reading of config.json, classes."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from armllm.checkpoint.config import (
    MAX_LAYERS,
    MAX_WIDTH,
    Classes,
    ConfigReader,
    ModelConfig,
)
from armllm.checkpoint.json_file import read_object
from armllm.layers.activation import PLAIN, plain
from armllm.layers.embedding import Embedding, gather
from armllm.layers.encoder_attention import EncoderAttention
from armllm.layers.linear import Linear, as_float32, load_linear
from armllm.layers.norm import LayerNorm
from armllm.tokenizer import sentence_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import Attention, AttentionMetadata
    from armllm.layers.recurrent import RecurrentLayer
    from armllm.layers.rotary import RotaryEmbedding

MAX_LABELS = 100_000
TOKENIZER_LENGTH = "tokenizer_config.json"  # where sentence-transformers keeps its length since version 6
SENTENCE_ACTIVATION = "config_sentence_transformers.json"  # and what it makes of the scores of pairs
ACTIVATIONS = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}  # torch's classes
PADDING = ("padding", "padding_side", "pad_to_multiple_of", "return_tensors")  # changes no result
PROBLEMS = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """type_vocab_size: kinds of segments, 0 for none. position_offset: of the first row that is used.

    has_token_heads: the checkpoint must have them; they are used anyway where they are. ends: the tokens at
    the begin and end of each text, for which these have no results.
    """

    intermediate_size: int
    activation: str
    norm_eps: float
    type_vocab_size: int = 0
    position_offset: int = 0
    has_token_heads: bool = False
    ends: tuple[int, int] = (-1, -1)


class LayerNames(NamedTuple):
    """What a layer's tensors are called: products and norms, below the layer's own name."""

    layer: str
    query: str
    key: str
    value: str
    attended: str
    attention_norm: str
    up: str
    down: str
    output_norm: str


class TokenHeads(NamedTuple):
    """What BGE-M3 (Chen et al. 2024) makes of each token: a weight, and a vector."""

    weight: Linear
    vector: Linear


class PostNormLayer:
    """x = norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, config: EncoderConfig, weights: Weights, names: LayerNames) -> None:
        size = config.hidden_size
        self.heads = config.num_heads, config.head_dim
        self.qkv_proj = load_linear(weights, dict.fromkeys(names[1:4], size), size, bias=True)
        self.attention = EncoderAttention(num_heads=config.num_heads, head_dim=config.head_dim)
        self.out_proj = load_linear(weights, {names.attended: size}, size, bias=True)
        self.up = load_linear(weights, {names.up: config.intermediate_size}, size, bias=True)
        self.down = load_linear(weights, {names.down: size}, config.intermediate_size, bias=True)
        self.activation = plain(config.activation)
        self.attention_norm, self.output_norm = (
            LayerNorm(weights.scope(name), size, config.norm_eps, affine=True)
            for name in (names.attention_norm, names.output_norm)
        )

    def __call__(self, x: Tensor, metadata: AttentionMetadata, rows: Tensor | None) -> Tensor:
        """States ``[T, hidden_size]``; with ``rows``, of these tokens only, though all are attended to."""
        query, key, value = self.qkv_proj(x).view(x.shape[0], 3, *self.heads).unbind(1)
        attended = self.attention(query, key, value, metadata.query_start_loc).flatten(1)
        if rows is not None:
            x, attended = gather(x, rows), gather(attended, rows)
        attended = self.out_proj(attended)
        self.attention_norm.add(attended, x)
        out = self.down(self.activation(self.up(attended)))
        self.output_norm.add(out, attended)
        return out


class Encoder:
    """Embeddings and layers. A family names its tensors, and adds a head for its classes."""

    prefixes: ClassVar[tuple[str, ...]]
    names: ClassVar[LayerNames]
    ignored: ClassVar[tuple[str, ...]] = ()
    config: EncoderConfig

    def __init__(self, config: Any, weights: Weights, *, max_positions: int) -> None:
        self.config = config
        self.rotaries: list[RotaryEmbedding] = []
        self.attention_layers: list[Attention] = []
        self.recurrent_layers: list[RecurrentLayer] = []
        body = weights
        for prefix in self.prefixes:
            body = body.scope(prefix, optional=True)
        self.load_embeddings(body.scope("embeddings"), max_positions)
        self.load_layers(body)
        if config.classes is not None:
            self.head = self.load_head(weights, body, len(config.classes.labels))
        self.token_heads = self.load_token_heads(weights)

    def load_embeddings(self, weights: Weights, max_positions: int) -> None:
        """The tables, and the norm of their sum."""
        del max_positions  # the table of positions has the checkpoint's length
        config, size = self.config, self.config.hidden_size
        self.word_embeddings = Embedding(weights.scope("word_embeddings"), config.vocab_size, size)
        self.position_embeddings = Embedding(
            weights.scope("position_embeddings"), config.max_position_embeddings, size
        )
        self.token_type_embeddings = (
            Embedding(weights.scope("token_type_embeddings"), config.type_vocab_size, size)
            if config.type_vocab_size
            else None
        )
        self.embedding_norm = LayerNorm(weights.scope("LayerNorm"), size, config.norm_eps, affine=True)

    def load_layers(self, weights: Weights) -> None:
        """All layers."""
        self.layers = [
            PostNormLayer(self.config, weights.scope(f"{self.names.layer}.{index}"), self.names)
            for index in range(self.config.num_layers)
        ]

    def load_head(self, weights: Weights, body: Weights, num_labels: int) -> Callable[[Tensor], Tensor]:  # noqa: ARG002
        """From pooled states to scores; ``body``: the tensors of the encoder itself."""
        raise TypeError(f"{type(self).__name__} has no classes")

    def load_token_heads(self, weights: Weights) -> TokenHeads | None:
        """They stay in floating point: a weight is a single row."""
        if not self.config.has_token_heads and not weights.has("sparse_linear.weight"):
            return None
        weights, size = copy.copy(weights), self.config.hidden_size
        weights.quantization = None
        return TokenHeads(
            load_linear(weights, {"sparse_linear": 1}, size, bias=True),
            load_linear(weights, {"colbert_linear": size}, size, bias=True),
        )

    @classmethod
    def ignored_tensors(cls, config: ModelConfig) -> tuple[str, ...]:
        """Tables that are computed, and heads that this class does not have."""
        pooler = () if config.classes is not None else ("*pooler.*",)
        return ("*embeddings.position_ids", "*embeddings.token_type_ids", *pooler, *cls.ignored)

    def places(self, positions: Tensor, total_lens: Tensor) -> Tensor:
        """Rows of the table of positions."""
        del total_lens
        return positions + self.config.position_offset

    def places_among(self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:  # noqa: ARG002
        """What `places` gave, changed by which tokens there are; of most encoders nothing is."""
        return places

    def __call__(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states of ``rows``, or of all tokens."""
        return self.encode(token_ids, self.places_among(token_ids, places, metadata), metadata, rows)

    def encode(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """The same of places that `places_among` gave: the same operations, whatever the tokens are."""
        x = self.embed(token_ids, places, metadata)
        for layer in self.layers[:-1]:
            x = layer(x, metadata, rows=None)
        # After the last layer's attention nothing looks at the other tokens any more.
        return self.layers[-1](x, metadata, rows)

    def embed_words(self, token_ids: Tensor, metadata: AttentionMetadata) -> Tensor:
        """Words and segments, without positions."""
        x = self.word_embeddings(token_ids)
        types = self.token_type_embeddings
        if types is not None:
            x += (
                types.weight[0]
                if metadata.token_types is None or len(types.weight) == 1
                else types(metadata.token_types)
            )
        return x

    def embed(self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """What the first layer sees."""
        x = self.embed_words(token_ids, metadata)
        self.embedding_norm.add(x, self.position_embeddings(places))
        return x

    @staticmethod
    def logits(hidden: Tensor) -> Tensor:
        """None, of no rows: an encoder does not say which token comes next."""
        return torch.empty(len(hidden), 0)

    def classify(self, pooled: Tensor) -> Tensor:
        """Scores fp32 ``[R, num_labels]`` of ``pooled[R, hidden_size]``, before any activation."""
        return as_float32(self.head(pooled))

    def token_weights(self, states: Tensor, *, positive: bool) -> Tensor:
        """The weight fp32 ``[R]`` of each token in a sparse vector, of ``states[R, hidden_size]``."""
        assert self.token_heads is not None  # noqa: S101 - see `Pooling`
        weights = as_float32(self.token_heads.weight(states)).flatten()
        return weights.relu() if positive else weights

    def token_vectors(self, states: Tensor) -> Tensor:
        """The vector fp32 ``[R, hidden_size]`` of each token, of any length."""
        assert self.token_heads is not None  # noqa: S101 - see `Pooling`
        return as_float32(self.token_heads.vector(states))


class ClassificationHead:
    """classifier(activation(dense(x)))."""

    def __init__(self, dense: Linear, activation: Callable[[Tensor], Tensor], classifier: Linear) -> None:
        self.dense, self.activation, self.classifier = dense, activation, classifier

    def __call__(self, pooled: Tensor) -> Tensor:
        return self.classifier(self.activation(self.dense(pooled)))


def encoder_fields(
    reader: ConfigReader,
    architecture: str,
    *,
    hidden: tuple[str, int] = ("hidden_size", 768),
    layers: tuple[str, int] = ("num_hidden_layers", 12),
    heads: tuple[str, int] = ("num_attention_heads", 12),
    vocab_size: int = 30522,
    positions: int = 512,
) -> dict[str, Any]:
    """The fields of `ModelConfig`; keys and defaults are those of the class in transformers."""
    reader.only("is_decoder", False)
    reader.only("is_causal", False)
    reader.only("add_cross_attention", False)
    hidden_size, num_layers, num_heads = (reader.integer(*key) for key in (hidden, layers, heads))
    if num_layers > MAX_LAYERS or hidden_size > MAX_WIDTH:  # checked before anything is made of them
        raise reader.error(f"no model has {num_layers} layers of width {hidden_size}")
    if hidden_size % num_heads:
        raise reader.error(f"{hidden[0]} is not {heads[0]} times a whole number")
    length = reader.integer("max_position_embeddings", positions)
    return {
        "architecture": architecture,
        "vocab_size": reader.integer("vocab_size", vocab_size),
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": hidden_size // num_heads,
        "max_position_embeddings": length,
        "max_model_len": length,
        "tie_word_embeddings": False,
        "eos_token_ids": frozenset(),
        "windows": (None,) * num_layers,
        "is_encoder": True,
        "default_model_len": sentence_length(reader),
        "classes": read_classes(reader) if architecture.endswith("ForSequenceClassification") else None,
    }


def bert_fields(reader: ConfigReader) -> dict[str, Any]:
    """The feed-forward part and norms under BERT's names."""
    reader.only("position_embedding_type", "absolute")
    return {
        "intermediate_size": reader.integer("intermediate_size", 3072),
        "activation": reader.choice("hidden_act", "gelu", PLAIN),
        "norm_eps": reader.number("layer_norm_eps", 1e-12),
    }


def sentence_length(reader: ConfigReader) -> int | None:
    """Tokens up to which sentence-transformers reads a text with this checkpoint, if it says so."""
    folder = reader.path.parent
    later = folder / TOKENIZER_LENGTH
    path, values = sentence_settings(folder)
    if not path.is_file():
        return None
    sentence_reader = ConfigReader(values, path)
    stated = text_length(sentence_reader) or sentence_reader.optional_integer("max_seq_length", None)
    if stated is not None or not later.is_file():
        return stated
    length = read_object(later).get("model_max_length")
    return length if isinstance(length, int) and 1 < length < MAX_WIDTH else None


def text_length(reader: ConfigReader) -> int | None:
    """max_length that sentence-transformers passes to the tokenizer; what else changes texts is refused."""
    passed = reader.get("processing_kwargs", None) or {}
    parts = {name: passed.get(name) or {} for name in ("common", "text")} if isinstance(passed, dict) else {}
    if not parts or not all(isinstance(part, dict) for part in parts.values()):
        raise reader.error(f"processing_kwargs must be an object of objects, not {passed!r:.100}")
    for name, known in (("common", PADDING), ("text", (*PADDING, "max_length", "truncation"))):
        unknown = next((key for key in parts[name] if key not in known), None)
        if unknown is not None:
            raise reader.error(f"processing_kwargs.{name}: {unknown!r:.80} is not supported")
    text = ConfigReader(parts["text"], reader.path, "processing_kwargs.text.")
    text.only("truncation", True, "longest_first")
    return text.optional_integer("max_length", None)


def read_classes(reader: ConfigReader, pooling: str = "cls") -> Classes:
    """The labels of a classification head, and what makes probabilities of its scores."""
    labels = reader.get("id2label", None)
    if labels is None:
        count = reader.integer("num_labels", 2)
        if count > MAX_LABELS:
            raise reader.error(f"num_labels is {count}: no model has more than {MAX_LABELS}")
        labels = {str(index): f"LABEL_{index}" for index in range(count)}
    if (
        not isinstance(labels, dict)
        or {*labels} != {str(index) for index in range(len(labels))}
        or not labels
    ):
        raise reader.error("id2label must hold a name for each number from 0 on")
    return Classes(
        labels=tuple(str(labels[str(index)]) for index in range(len(labels))),
        pooling=pooling,
        activation=_class_activation(reader, len(labels)),
    )


def _class_activation(reader: ConfigReader, num_labels: int) -> str:
    """As sentence-transformers stored it, else by problem_type, else by the number of labels."""
    named = _sentence_activation(reader)
    if named is not None:
        return read_activation(reader, named)
    problem = reader.get("problem_type", None)
    if problem is not None:
        return PROBLEMS[reader.choice("problem_type", "", PROBLEMS)]
    return "sigmoid" if num_labels == 1 else "softmax"


def read_activation(reader: ConfigReader, named: Any) -> str:
    """What makes probabilities of scores, by the name of torch's class."""
    activation = ACTIVATIONS.get(str(named).rpartition(".")[2])
    if activation is None:
        raise reader.error(
            f"activation {named!r:.80} of the scores is not supported, only {', '.join(ACTIVATIONS)}"
        )
    return activation


def _sentence_activation(reader: ConfigReader) -> Any:
    """What sentence-transformers stored: in its own file, or by earlier versions in config.json."""
    inner = reader.get("sentence_transformers", {})
    if not isinstance(inner, dict):
        raise reader.error(f"sentence_transformers must be an object, not {inner!r}")
    earlier = inner.get("activation_fn") or reader.get("sbert_ce_default_activation_function", None)
    path = reader.path.parent / SENTENCE_ACTIVATION
    return (read_object(path).get("activation_fn") if path.is_file() else None) or earlier
