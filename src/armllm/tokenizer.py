"""The checkpoint's tokenizer.json, read by the `tokenizers` library."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import tokenizers

from armllm.checkpoint.gguf_tokenizer import read_gguf_tokenizer
from armllm.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# `encode` keeps the interpreter's lock, which would halt everything else for as long as a long text takes;
# `encode_batch_fast` lets go of it.
LONG_TEXT = 2000


class Tokenizer:
    """Text to token ids and back; what goes around a prompt is tokenizer.json's own business.

    ``eos_token_id`` is None where tokenizer_config.json names no end token.
    """

    def __init__(self, folder: Path) -> None:
        if folder.suffix == ".gguf" and folder.is_file():
            self._tokenizer, self.settings = read_gguf_tokenizer(folder)
        else:
            self._tokenizer, self.settings = _read_folder(folder)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.folder = folder
        self.bos_token_id = self._special("bos_token")
        self.eos_token_id = self._special("eos_token")

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id, added tokens included."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @functools.cached_property
    def longest_token(self) -> int:
        """Characters of a text that one token stands for at most."""
        return max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around a prompt (a begin token, say)."""
        try:
            if len(text) > LONG_TEXT:
                encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
                ids: list[int] = encodings[0].ids
            else:
                ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except Exception as error:  # noqa: BLE001 - lone surrogates, for one
            raise RequestError(f"the prompt can't be tokenized: {_line(error)}") from None
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def to_json(self) -> str:
        """All of tokenizer.json, for libraries that read it themselves."""
        text: str = self._tokenizer.to_str()
        return text

    def special_texts(self) -> dict[str, str]:
        """What tokenizer_config.json calls bos_token, eos_token and so on."""
        texts = {name: self._text(name) for name in self.settings if name.endswith("_token")}
        return {name: text for name, text in texts.items() if text is not None}

    def _special(self, name: str) -> int | None:
        text = self._text(name)
        return None if text is None else self._tokenizer.token_to_id(text)

    def _text(self, name: str) -> str | None:
        token = self.settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) else None


def _read_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} has no tokenizer.json; other tokenizer files are not read"
            " (convert it with transformers, or pass skip_tokenizer_init=True and prompts of token ids)"
        )
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise CheckpointError(f"{path} is not a tokenizer that `tokenizers` reads: {_line(error)}") from None
    return tokenizer, _read_settings(folder / "tokenizer_config.json")


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not JSON: {_line(error)}") from None
    if not isinstance(settings, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return settings


def _line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
