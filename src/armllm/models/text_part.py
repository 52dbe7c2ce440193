"""Models with vision or audio: only their text part is loaded and computed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from armllm.models.llama import LlamaForCausalLM

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import Weights


class TextPart(LlamaForCausalLM):
    """Text alone is taken. The class of the text model comes behind this one.

    ``text_type``: the model_type of text_config, or several. ``towers``: patterns of tensors that are not
    loaded. Whether the head is the table of the tokens is a key beside text_config, ``tied_by_default``
    without it, or one in text_config where that model ``has_head``.
    """

    text_type: ClassVar[str | tuple[str, ...]]
    towers: ClassVar[tuple[str, ...]]
    tied_by_default: ClassVar[bool] = False
    has_head: ClassVar[bool] = False

    @staticmethod
    def decoder_weights(weights: Weights) -> Weights:
        """All but the head."""
        return weights.scope("model.language_model")

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """The text_config of config.json, with end tokens and the head of the whole model."""
        text = reader.section("text_config")
        text.only("model_type", *([cls.text_type] if isinstance(cls.text_type, str) else cls.text_type))
        config = super().read_config(text)
        eos = reader.token_ids("eos_token_id", None, config.vocab_size)
        tied = reader.boolean("tie_word_embeddings", default=cls.tied_by_default)
        text.refuse_unknown()
        if cls.has_head:
            tied = config.tie_word_embeddings
        return dataclasses.replace(
            config, eos_token_ids=eos or config.eos_token_ids, tie_word_embeddings=tied
        )

    @classmethod
    def ignored_tensors(cls, config: Any) -> tuple[str, ...]:
        """The towers, and what joins them to the text model."""
        return (*super().ignored_tensors(config), *cls.towers)
