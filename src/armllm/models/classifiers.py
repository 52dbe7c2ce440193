"""Decoders with a head for classes, which reads the last token's state: rerankers and reward models."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from armllm.checkpoint.config import Classes
from armllm.layers.linear import DenseLinear, as_float32, load_linear
from armllm.layers.ranks import building_for
from armllm.models.encoder import read_classes, sentence_length
from armllm.models.gemma import GemmaForCausalLM
from armllm.models.gemma2 import Gemma2ForCausalLM
from armllm.models.gemma3 import Gemma3ForCausalLM
from armllm.models.llama import LlamaForCausalLM
from armllm.models.mistral import MistralForCausalLM
from armllm.models.qwen2 import Qwen2ForCausalLM
from armllm.models.qwen3 import Qwen3ForCausalLM
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear
    from armllm.models.llama import LlamaConfig


class Classifier(LlamaForCausalLM):
    """A product gives scores of classes instead of those of tokens. The decoder comes behind in the bases.

    default_padding: pad_token_id of a config.json without one.
    """

    default_padding: ClassVar[int | None] = None

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """The decoder's config.json with labels."""
        config = super().read_config(reader)
        tokens = reader.get("classifier_from_token", None)
        if tokens is None:
            padding = reader.values.get("pad_token_id", cls.default_padding)
            classes = dataclasses.replace(read_classes(reader, "last"), padding=padding)
        else:
            classes = _read_tokens(reader, tokens, config)
        length = sentence_length(reader)
        return dataclasses.replace(
            config, architecture=cls.__name__, classes=classes, default_model_len=length
        )

    def load_head(self, weights: Weights) -> Linear:
        """The scores of the classes, or those of tokens."""
        config, classes = self.config, self.config.classes
        if classes.token_ids:
            table = (
                self.embed_tokens.weight
                if config.tie_word_embeddings
                else weights.take("lm_head.weight", config.vocab_size, config.hidden_size)
            )
            rows = table[[*classes.token_ids]]
            difference = len(classes.labels) < len(rows)
            return DenseLinear((rows[1:].float() - rows[:1].float()).to(rows.dtype) if difference else rows)
        labels = len(classes.labels)
        with building_for(None):  # rank 0 alone computes it
            return load_linear(weights, {"score": labels}, self.config.hidden_size, bias=False)

    def classify(self, pooled: Tensor) -> Tensor:
        """Scores fp32 ``[R, num_labels]``."""
        return as_float32(self.lm_head(pooled))

    @classmethod
    def ignored_tensors(cls, config: Any) -> tuple[str, ...]:
        """The head for tokens may still be there."""
        return (*super().ignored_tensors(config), "lm_head.weight")


def _read_tokens(reader: ConfigReader, tokens: Any, config: LlamaConfig) -> Classes:
    """Classes that are tokens: a decoder was asked a question, and its answer is the score.

    The keys are vLLM's: two tokens are one class (Qwen3's reranker, method "from_2_way_softmax"), or each is
    one ("no_post_processing").
    """
    if not isinstance(tokens, list) or not tokens or not all(isinstance(one, str) for one in tokens):
        raise reader.error(f"classifier_from_token must be a list of tokens, not {tokens!r:.100}")
    original = reader.boolean("is_original_qwen3_reranker", default=False)
    two_way = "from_2_way_softmax"
    if not original and not reader.has("method"):
        raise reader.error(f"classifier_from_token needs a method: {two_way} or no_post_processing")
    method = reader.choice("method", two_way, (two_way, "no_post_processing"))
    if method == two_way and len(tokens) != 2:
        raise reader.error(f"method {two_way} needs two tokens in classifier_from_token, not {len(tokens)}")
    tokenizer = Tokenizer(reader.path if reader.path.suffix == ".gguf" else reader.path.parent)
    token_ids = [tokenizer.token_id(token) for token in tokens]
    for token, token_id in zip(tokens, token_ids, strict=True):
        if token_id is None or token_id >= config.vocab_size:
            raise reader.error(f"classifier_from_token: {token!r:.100} is no token of the vocabulary")
    return Classes(
        labels=("LABEL_0",) if method == two_way else tuple(tokens),
        pooling="last",
        activation="sigmoid" if method == two_way or len(tokens) == 1 else "softmax",
        token_ids=tuple(token_id for token_id in token_ids if token_id is not None),
    )


class LlamaForSequenceClassification(Classifier):
    """Llama."""


class MistralForSequenceClassification(Classifier, MistralForCausalLM):
    """Mistral."""


class Qwen2ForSequenceClassification(Classifier, Qwen2ForCausalLM):
    """Qwen2."""


class Qwen3ForSequenceClassification(Classifier, Qwen3ForCausalLM):
    """Qwen3, as its rerankers are published for classification."""


class GemmaForSequenceClassification(Classifier, GemmaForCausalLM):
    """Gemma 1."""

    default_padding = 0


class Gemma2ForSequenceClassification(Classifier, Gemma2ForCausalLM):
    """Gemma 2."""

    default_padding = 0


class Gemma3TextForSequenceClassification(Classifier, Gemma3ForCausalLM):
    """Gemma 3's text model."""

    default_padding = 0
