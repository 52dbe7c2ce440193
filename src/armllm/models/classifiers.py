"""Decoders with a head for classes, which reads the last token's state: rerankers and reward models."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

from armllm.layers.linear import as_float32, load_linear
from armllm.models.encoder import read_classes
from armllm.models.gemma2 import Gemma2ForCausalLM, GemmaConfig
from armllm.models.gemma3 import Gemma3Config, Gemma3ForCausalLM
from armllm.models.llama import LlamaConfig, LlamaForCausalLM
from armllm.models.mistral import MistralForCausalLM
from armllm.models.qwen2 import Qwen2ForCausalLM
from armllm.models.qwen3 import Qwen3ForCausalLM

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights
    from armllm.layers.linear import Linear

    Config = TypeVar("Config", bound=LlamaConfig)


class Classifier(LlamaForCausalLM):
    """A product gives the scores of the classes instead of those of tokens."""

    def load_head(self, weights: Weights) -> Linear:
        """The scores of the classes."""
        labels = len(self.config.classes.labels)
        return load_linear(weights, {"score": labels}, self.config.hidden_size, bias=False)

    def classify(self, pooled: Tensor) -> Tensor:
        """Scores fp32 ``[R, num_labels]``."""
        return as_float32(self.lm_head(pooled))

    @staticmethod
    def ignored_tensors(config: Any) -> tuple[str, ...]:
        """The head for tokens may still be there."""
        return (*LlamaForCausalLM.ignored_tensors(config), "lm_head.weight")


def with_classes(reader: ConfigReader, config: Config, architecture: str) -> Config:
    """The decoder's configuration with the labels."""
    return dataclasses.replace(config, architecture=architecture, classes=read_classes(reader, "last"))


class LlamaForSequenceClassification(Classifier):
    """Llama."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Llama's config.json with labels."""
        return with_classes(reader, LlamaForCausalLM.read_config(reader), "LlamaForSequenceClassification")


class MistralForSequenceClassification(Classifier, MistralForCausalLM):
    """Mistral."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Mistral's config.json with labels."""
        return with_classes(
            reader, MistralForCausalLM.read_config(reader), "MistralForSequenceClassification"
        )


class Qwen2ForSequenceClassification(Classifier, Qwen2ForCausalLM):
    """Qwen2."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Qwen2's config.json with labels."""
        return with_classes(reader, Qwen2ForCausalLM.read_config(reader), "Qwen2ForSequenceClassification")


class Qwen3ForSequenceClassification(Classifier, Qwen3ForCausalLM):
    """Qwen3, as its rerankers are published for classification."""

    @staticmethod
    def read_config(reader: ConfigReader) -> LlamaConfig:
        """Qwen3's config.json with labels."""
        return with_classes(reader, Qwen3ForCausalLM.read_config(reader), "Qwen3ForSequenceClassification")


class Gemma2ForSequenceClassification(Classifier, Gemma2ForCausalLM):
    """Gemma 2."""

    @staticmethod
    def read_config(reader: ConfigReader) -> GemmaConfig:
        """Gemma 2's config.json with labels."""
        return with_classes(reader, Gemma2ForCausalLM.read_config(reader), "Gemma2ForSequenceClassification")


class Gemma3TextForSequenceClassification(Classifier, Gemma3ForCausalLM):
    """Gemma 3's text model."""

    @staticmethod
    def read_config(reader: ConfigReader) -> Gemma3Config:
        """The config.json of a text model with labels."""
        config = Gemma3ForCausalLM.read_config(reader)
        return with_classes(reader, config, "Gemma3TextForSequenceClassification")
