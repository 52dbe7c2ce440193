"""GPT-2's tokenizer from vocab.json and merges.txt, as OPT and other older repositories have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.tokenizer_limits import check_size, is_library_error
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"
CLASSES = ("GPT2Tokenizer", "GPT2TokenizerFast")  # others split texts in another way
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def has_byte_pairs(folder: Path) -> bool:
    """Whether both files are there."""
    return (folder / VOCABULARY).is_file() and (folder / MERGES).is_file()


def read_byte_pairs(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A `tokenizers.Tokenizer` and tokenizer_config.json's content; CheckpointError names what is strange.

    It puts the begin token before a prompt if tokenizer_config.json has ``add_bos_token``.
    """
    settings = {
        name: value
        for file in ("special_tokens_map.json", "tokenizer_config.json")
        if (folder / file).is_file()
        for name, value in read_object(folder / file).items()
    }
    kind = settings.get("tokenizer_class")
    if kind not in (None, *CLASSES):
        raise CheckpointError(
            f"{folder}: {VOCABULARY} and {MERGES} are read for {CLASSES[0]} only, not for {kind!r:.80};"
            " write a tokenizer.json with transformers"
        )
    vocabulary = _vocabulary(folder / VOCABULARY)
    try:
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, _merges(folder / MERGES)))
    except BaseException as error:
        if isinstance(error, CheckpointError) or not is_library_error(error):
            raise
        raise CheckpointError(f"{folder / MERGES} does not fit {VOCABULARY}: {error!s:.200}") from None
    spaced = settings.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    tokenizer.decoder = decoders.ByteLevel()
    _add_tokens(folder, tokenizer, settings)
    begin = _text(settings.get("bos_token"))
    if settings.get("add_bos_token") is True:
        index = None if begin is None else tokenizer.token_to_id(begin)
        if begin is None or index is None:
            raise CheckpointError(f"{folder}: add_bos_token needs a bos_token of the vocabulary")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"], special_tokens=[(begin, index)]
        )
    return tokenizer, settings


def _vocabulary(path: Path) -> dict[str, int]:
    vocabulary = read_object(path)
    ids = list(vocabulary.values())
    if not ids or not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
        raise CheckpointError(f"{path} must hold tokens and their ids")
    if min(ids) < 0 or max(ids) >= 1 << 31 or len(set(ids)) < len(ids):
        raise CheckpointError(f"{path} must hold a different id of at least 0 for each token")
    return vocabulary


def _merges(path: Path) -> list[tuple[str, str]]:
    check_size(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text: {error}") from None
    pairs = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        first, _, second = line.rstrip("\r").partition(" ")
        if not first or not second or " " in second:
            raise CheckpointError(f"{path}, line {number}: two tokens are expected, not {line!r:.80}")
        pairs.append((first, second))
    return pairs


def _add_tokens(folder: Path, tokenizer: Any, settings: dict[str, Any]) -> None:
    """Added tokens in the order of their ids, which must go on where the vocabulary ends; special ones."""
    path = folder / ADDED
    added = sorted(read_object(path).items(), key=lambda item: str(item[1])) if path.is_file() else []
    if not all(isinstance(index, int) for _, index in added):
        raise CheckpointError(f"{path} must hold tokens and their ids")
    for text, index in sorted(added, key=lambda item: item[1]):
        tokenizer.add_tokens([AddedToken(text, normalized=False)])
        if tokenizer.token_to_id(text) != index:
            raise CheckpointError(f"{path}: the id of {text!r:.80} must be {tokenizer.token_to_id(text)}")
    special = dict.fromkeys(filter(None, (_text(settings.get(name)) for name in SPECIAL)))
    for text in special:
        if tokenizer.token_to_id(text) is None:
            raise CheckpointError(f"{folder}: the special token {text!r:.80} is not in {VOCABULARY}")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
