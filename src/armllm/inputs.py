"""Prompts as dicts, under vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypedDict


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class _Text(TypedDict, total=False):
    prompt: str


class TokensPrompt(_Text):
    """A prompt as token ids. ``prompt`` is the text that they came from, for the output."""

    prompt_token_ids: list[int]


# text, token ids, {"prompt": text} or {"prompt_token_ids": token ids}
PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | dict[str, Any]
