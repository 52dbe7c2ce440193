"""What is fixed once an engine is loaded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from armllm.pictures import PictureLimit
    from armllm.sampling_params import SamplingParams
    from armllm.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The engine's model as a server sees it.

    model: the option's value. default_sampling: the checkpoint's generation_config.json over vLLM's defaults.
    max_model_len: prompt and output tokens of a request. has_priorities: whether requests may bring a
    priority. is_encoder: whether prompts are computed whole, and cut at their end. labels: of the
    classification head; None: there is none. pictures: how many a prompt may have.
    embedding_size: numbers of an embedding.
    """

    model: str
    tokenizer: Tokenizer
    default_sampling: SamplingParams
    vocab_size: int
    max_model_len: int
    has_priorities: bool
    pictures: PictureLimit
    is_encoder: bool = False
    labels: tuple[str, ...] | None = None
    embedding_size: int = 0
