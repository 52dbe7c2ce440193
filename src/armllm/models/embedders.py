"""Decoders without a head, which make embeddings: E5-Mistral, or what sentence-transformers saves."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from armllm.models.encoder import sentence_length
from armllm.models.gemma2 import Gemma2ForCausalLM
from armllm.models.gemma3 import Gemma3ForCausalLM
from armllm.models.llama import LlamaForCausalLM
from armllm.models.mistral import MistralForCausalLM
from armllm.models.qwen2 import Qwen2ForCausalLM
from armllm.models.qwen3 import Qwen3ForCausalLM

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader


class Embedder(LlamaForCausalLM):
    """Nobody asks for scores of tokens: they would be a tied head's. A family is the last base."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """The decoder's config.json, whatever it says of a head."""
        config = super().read_config(reader)
        return dataclasses.replace(
            config,
            architecture=cls.__name__,
            generates=False,
            tie_word_embeddings=True,
            default_model_len=sentence_length(reader),
        )


class LlamaModel(Embedder):
    """Llama."""


class MistralModel(Embedder, MistralForCausalLM):
    """Mistral."""


class Qwen2Model(Embedder, Qwen2ForCausalLM):
    """Qwen2."""


class Qwen3Model(Embedder, Qwen3ForCausalLM):
    """Qwen3."""


class Gemma2Model(Embedder, Gemma2ForCausalLM):
    """Gemma 2."""


class Gemma3TextModel(Embedder, Gemma3ForCausalLM):
    """Gemma 3's text model."""
