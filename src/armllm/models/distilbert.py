"""DistilBERT (Sanh et al. 2019): BERT's layers under other names, without segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.layers.activation import PLAIN
from armllm.layers.linear import load_linear
from armllm.models.encoder import ClassificationHead, Encoder, EncoderConfig, LayerNames, encoder_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights

EPS = 1e-12


class DistilBertModel(Encoder):
    """The encoder; a sinusoidal table of positions is stored as a learned one is."""

    prefixes = ("distilbert",)
    ignored = ("vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*")
    names = LayerNames(
        layer="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attended="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        output_norm="output_layer_norm",
    )

    @classmethod
    def read_config(cls, reader: ConfigReader) -> EncoderConfig:
        """DistilBERT's config.json."""
        return EncoderConfig(
            **encoder_fields(
                reader, cls.__name__, hidden=("dim", 768), layers=("n_layers", 6), heads=("n_heads", 12)
            ),
            intermediate_size=reader.integer("hidden_dim", 3072),
            activation=reader.choice("activation", "gelu", PLAIN),
            norm_eps=EPS,
        )


class DistilBertForMaskedLM(DistilBertModel):
    """The same as it was trained; the head is not loaded."""


class DistilBertForSequenceClassification(DistilBertModel):
    """The same with classes."""

    def load_head(self, weights: Weights, body: Weights, num_labels: int) -> Callable[[Tensor], Tensor]:
        """A dense layer with ReLU before the classifier."""
        del body
        size = self.config.hidden_size
        return ClassificationHead(
            load_linear(weights, {"pre_classifier": size}, size, bias=True),
            torch.relu,
            load_linear(weights, {"classifier": num_labels}, size, bias=True),
        )
