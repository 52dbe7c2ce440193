"""What a tokenizer must not do: grow tokens or texts without bound, or name tokens that it does not have.

A tokenizer.json is a program over strings. Its parts are looked at as the `tokenizers` library has read them.
"""

from __future__ import annotations

import base64
import json
import math
import re
from typing import TYPE_CHECKING, Any

from armllm.checkpoint import json_file
from armllm.checkpoint.patterns import repeats_groups
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_BYTES = 64 << 20  # of tokenizer.json; Gemma 3's has 33 MB
LONGEST_TOKEN = 1024  # characters
MOST_AROUND = 64  # tokens that are put around a prompt
MOST_GROWTH = 128  # characters that one character may become
# What steps that can be repeated make of a character at most, beside those that `_growth` works out: up to
# four bytes, written as letters; a letter between two spaces.
GROWTH = {"ByteLevel": 4, "BertNormalizer": 3}

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')


def check_size(path: Path) -> None:
    """Refuse a tokenizer.json that would take gigabytes once it is read."""
    json_file.check_size(path, MAX_BYTES)


def check_tables(path: Path) -> None:
    """Refuse a table of replacements that the library would panic at, and write a trace to the terminal."""
    for found in _CHARSMAP.finditer(path.read_bytes()):
        if not _is_table(found[1]):
            raise CheckpointError(f"{path}: the precompiled_charsmap of its normalizer is damaged")


def _is_table(charsmap: bytes) -> bool:
    """Whether this is a table of SentencePiece's, in base64 as the library takes it."""
    try:
        table = base64.b64decode(charsmap, validate=True)
        trie = int.from_bytes(table[:4], "little") // 4 * 4
        table[4 + trie :].decode()
    except ValueError:
        return False
    return len(table) >= 4 + trie > 4 and base64.b64encode(table) == charsmap


def is_library_error(error: BaseException) -> bool:
    """Whether `tokenizers` raised it: it has no class for them, and its panics are no Exceptions."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def check_tokenizer(tokenizer: Any, path: Path) -> dict[str, int]:
    """A `tokenizers.Tokenizer`'s vocabulary, added tokens included; CheckpointError says what is wrong."""
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    longest = max(map(len, vocabulary), default=0)
    if longest > LONGEST_TOKEN:
        raise CheckpointError(
            f"{path} has a token of {longest:,} characters; one of more than {LONGEST_TOKEN:,} is not taken"
        )
    _check_patterns(tokenizer, path)
    growth = _part_growth(tokenizer.normalizer) * _part_growth(tokenizer.pre_tokenizer)
    for name, times in (("normalizer", growth), ("decoder", _part_growth(tokenizer.decoder))):
        if times > MOST_GROWTH:
            raise CheckpointError(
                f"{path}: its {name} may make {min(times, 10**9):,} characters of one; no more than"
                f" {MOST_GROWTH} are taken"
            )
    if (unknown := _unknown_piece(_state(tokenizer.post_processor))) is not None:
        raise CheckpointError(
            f"{path}: its post_processor puts {unknown!r:.80} around a prompt, which its special_tokens lack"
        )
    try:
        around = tokenizer.encode("").ids
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise CheckpointError(f"{path}: its tokenizer can't read an empty text: {error!s:.200}") from None
    if len(around) > MOST_AROUND:
        raise CheckpointError(
            f"{path}: its post_processor puts {len(around):,} tokens around a prompt; no more than"
            f" {MOST_AROUND} are taken"
        )
    known = set(vocabulary.values())
    for token_id in around:
        if token_id not in known:
            raise CheckpointError(
                f"{path}: its post_processor adds token {token_id}, which is not in its vocabulary"
            )
    return vocabulary


def _state(part: Any) -> Any:
    """What tokenizer.json says of a part; empty for one that it has not."""
    return {} if part is None else json.loads(part.__getstate__())


def _part_growth(part: Any) -> int:
    """Of one of a tokenizer's parts."""
    return 1 if part is None else _growth(_state(part))


def _unknown_piece(step: dict[str, Any]) -> str | None:
    """The first special token that a template does not define: the library would panic, and write a trace."""
    known = step.get("special_tokens") or {}
    if step.get("type") == "TemplateProcessing":
        pieces = [*step["single"], *step["pair"]]
        names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
        return next((name for name in names if name not in known), None)
    found = map(_unknown_piece, step.get("processors", ()))
    return next((name for name in found if name is not None), None)


def _check_patterns(tokenizer: Any, path: Path) -> None:
    """Refuse a pattern whose time doubles with each character of a text."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        for pattern in _patterns(_state(part)):
            if repeats_groups(pattern):
                raise CheckpointError(
                    f"{path}: the pattern {pattern!r:.200} repeats a group that varies, which may take"
                    " time without bound"
                )


def _patterns(step: Any) -> Iterator[str]:
    """The regular expressions of a step and of those within it."""
    if isinstance(step, dict):
        for key, value in step.items():
            if key == "Regex" and isinstance(value, str):
                yield value
            else:
                yield from _patterns(value)
    elif isinstance(step, list):
        for one in step:
            yield from _patterns(one)


def _growth(step: dict[str, Any]) -> int:
    """How many characters a step, or those within it, makes of one at most; at least 1."""
    kind = step["type"]
    if kind == "Replace":
        content, (how, pattern) = step["content"], next(iter(step["pattern"].items()))
        if how == "String" and pattern:
            return max(1, -(-len(content) // len(pattern)))
        return len(content) + 1  # where nothing is matched, something is put in
    if kind == "Prepend":
        return len(step["prepend"]) + 1
    if kind == "Precompiled":
        return _longest_replacement(step["precompiled_charsmap"])
    inner = [one for key in ("normalizers", "pretokenizers", "decoders") for one in step.get(key, [])]
    return GROWTH.get(kind, 1) * math.prod(map(_growth, inner))


def _longest_replacement(charsmap: str) -> int:
    """Of SentencePiece's table: a trie's size in 4 bytes, the trie, and texts that end in zeros."""
    table = base64.b64decode(charsmap)
    first = 4 + int.from_bytes(table[:4], "little")
    return max([1, *map(len, table[first:].split(b"\0"))])
