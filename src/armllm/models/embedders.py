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
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.layers.attention import AttentionMetadata


class Embedder(LlamaForCausalLM):
    """Nobody asks for scores of tokens: they would be a tied head's. A family is the last base."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """The decoder's config.json, whatever it says of a head. Each token may see those after it."""
        config = super().read_config(reader.changed(is_causal=None))
        if not reader.boolean("is_causal", default=True):
            further = tuple(None if window is None else window + 1 for window in config.windows)
            config = dataclasses.replace(config, is_encoder=True, windows=further)
        return dataclasses.replace(
            config,
            architecture=cls.__name__,
            generates=False,
            tie_word_embeddings=True,
            default_model_len=sentence_length(reader),
        )

    def places_among(self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata) -> Tensor:  # noqa: ARG002
        """What `places` gave."""
        return places

    def encode(
        self, token_ids: Tensor, places: Tensor, metadata: AttentionMetadata, rows: Tensor | None
    ) -> Tensor:
        """Final hidden states, as of an encoder."""
        return self(token_ids, places, metadata, rows)


class LlamaModel(Embedder):
    """Llama."""


class EuroBertModel(Embedder):
    """EuroBERT (Boizard et al. 2025): Llama whose tokens all see both ways."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """EuroBERT's config.json."""
        reader.only("is_causal", False)
        positions = reader.integer("max_position_embeddings", 8192)
        eps = reader.number("rms_norm_eps", 1e-5)
        return super().read_config(
            reader.changed(is_causal=False, max_position_embeddings=positions, rms_norm_eps=eps)
        )


class EuroBertForMaskedLM(EuroBertModel):
    """The same as it was trained; the head is not loaded."""


class MistralModel(Embedder, MistralForCausalLM):
    """Mistral."""


class Qwen2Model(Embedder, Qwen2ForCausalLM):
    """Qwen2."""


class Qwen3Model(Embedder, Qwen3ForCausalLM):
    """Qwen3."""


class Gemma2Model(Embedder, Gemma2ForCausalLM):
    """Gemma 2."""


class Gemma3TextModel(Embedder, Gemma3ForCausalLM):
    """Gemma 3's text model, EmbeddingGemma among them."""

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """Where each token sees those after it, a window has one half before the token and one behind it."""
        both_ways = reader.boolean("use_bidirectional_attention", default=False)
        config = super().read_config(reader.changed(use_bidirectional_attention=None))
        if not both_ways:
            return config
        halves = tuple(None if window is None else window // 2 + 1 for window in config.windows)
        return dataclasses.replace(config, is_encoder=True, windows=halves)
