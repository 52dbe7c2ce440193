"""Prompts as dicts, under vLLM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class MultiModalData(TypedDict, total=False):
    """What comes with a prompt: a picture or several, in the order of their places in it.

    A picture is a PIL image, an array ``[height, width, 3]`` of uint8, or the bytes of a file.
    """

    image: Any


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    multi_modal_data: NotRequired[MultiModalData]


class _Text(TypedDict, total=False):
    prompt: str
    multi_modal_data: MultiModalData


class TokensPrompt(_Text):
    """A prompt as token ids. ``prompt`` is the text that they came from, for the output."""

    prompt_token_ids: list[int]


# text, token ids, {"prompt": text} or {"prompt_token_ids": token ids}
PromptType: TypeAlias = str | Sequence[int] | TextPrompt | TokensPrompt | dict[str, Any]


class TokenizedText(NamedTuple):
    """A text, and the token ids that it has: these are the prompt."""

    text: str
    token_ids: list[int]


class PicturePrompt(NamedTuple):
    """A prompt with pictures, in the order of their places in it."""

    prompt: str | list[int] | TokenizedText
    pictures: tuple[Any, ...]
