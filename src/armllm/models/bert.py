"""BERT (Devlin et al. 2019) and RoBERTa (Liu et al. 2019), also XLM-RoBERTa and CamemBERT."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from armllm.layers.linear import load_linear
from armllm.models.encoder import (
    ClassificationHead,
    Encoder,
    EncoderConfig,
    LayerNames,
    bert_fields,
    encoder_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.attention import AttentionMetadata


class BertModel(Encoder):
    """BERT and MiniLM; the pooler is part of the classification head only."""

    prefixes = ("bert",)
    ignored = ("cls.*",)
    names = LayerNames(
        layer="encoder.layer",
        query="attention.self.query",
        key="attention.self.key",
        value="attention.self.value",
        attended="attention.output.dense",
        attention_norm="attention.output.LayerNorm",
        up="intermediate.dense",
        down="output.dense",
        output_norm="output.LayerNorm",
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        """BERT's config.json."""
        return EncoderConfig(
            **encoder_fields(reader, cls.__name__),
            **bert_fields(reader),
            type_vocab_size=reader.integer("type_vocab_size", 2),
        )


class BertForMaskedLM(BertModel):
    """BERT as it was trained; the head is not loaded."""


class BertForSequenceClassification(BertModel):
    """BERT with classes; with one class a cross-encoder."""

    def load_head(self, weights: Weights, body: Weights, num_labels: int) -> Callable[[Tensor], Tensor]:
        """The pooler and the classifier."""
        size = self.config.hidden_size
        return ClassificationHead(
            load_linear(body, {"pooler.dense": size}, size, bias=True),
            torch.tanh,
            load_linear(weights, {"classifier": num_labels}, size, bias=True),
        )


class RobertaModel(BertModel):
    """RoBERTa: BERT's layers; positions count from behind the padding token's number."""

    prefixes = ("roberta",)
    ignored = ("lm_head.*",)

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        """RoBERTa's config.json."""
        fields = encoder_fields(reader, cls.__name__, vocab_size=50265)
        padding = reader.get("pad_token_id", 1)
        length = fields["max_position_embeddings"]
        if not isinstance(padding, int) or isinstance(padding, bool) or not 0 <= padding < length - 1:
            raise reader.error(
                f"pad_token_id must be below max_position_embeddings {length} less 1, not {padding!r}"
            )
        fields["max_model_len"] -= padding + 1
        return EncoderConfig(
            **fields,
            **bert_fields(reader),
            type_vocab_size=reader.integer("type_vocab_size", 2),
            position_offset=padding + 1,
            ends=(_token(reader, "bos_token_id", 0), _token(reader, "eos_token_id", 2)),
        )

    def places_among(self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:
        """A padding token within a text takes no position: its row is that of its own number."""
        padding = self.config.position_offset - 1
        is_padding = token_ids == padding
        if is_padding.any():
            starts = metadata.query_start_loc.long()
            seen = is_padding.cumsum(0)
            before = torch.cat([seen.new_zeros(1), seen])[starts[:-1]]
            skipped = seen - before.repeat_interleave(starts.diff())
            places = (places - skipped).masked_fill(is_padding, padding)
        return places


def _token(reader: ConfigReader, name: str, default: int) -> int:
    """A special token's id; -1 for none."""
    token_id = reader.get(name, default)
    return token_id if isinstance(token_id, int) else -1


class RobertaForMaskedLM(RobertaModel):
    """RoBERTa as it was trained; the head is not loaded."""


class RobertaForSequenceClassification(RobertaModel):
    """RoBERTa with classes."""

    def load_head(self, weights: Weights, body: Weights, num_labels: int) -> Callable[[Tensor], Tensor]:
        """Its own dense layer instead of the pooler."""
        del body
        size = self.config.hidden_size
        return ClassificationHead(
            load_linear(weights, {"classifier.dense": size}, size, bias=True),
            torch.tanh,
            load_linear(weights, {"classifier.out_proj": num_labels}, size, bias=True),
        )


class XLMRobertaModel(RobertaModel):
    """RoBERTa for a hundred languages (Conneau et al. 2020); E5 and BGE-M3 are made of it.

    BGE-M3 has heads for tokens, which `armllm convert` puts beside the other tensors.
    """


class BgeM3EmbeddingModel(XLMRobertaModel):
    """BGE-M3 by vLLM's name: the same, which must have its heads for tokens."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        """XLM-RoBERTa's config.json."""
        return dataclasses.replace(super().read_config(reader), has_token_heads=True)


class XLMRobertaForMaskedLM(RobertaForMaskedLM):
    """The same as it was trained."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification):
    """The same with classes, as BGE's rerankers."""


class CamembertModel(RobertaModel):
    """RoBERTa for French (Martin et al. 2020)."""


class CamembertForMaskedLM(RobertaForMaskedLM):
    """The same as it was trained."""


class CamembertForSequenceClassification(RobertaForSequenceClassification):
    """The same with classes."""
