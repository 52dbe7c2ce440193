"""BERT's tokenizer: from vocab.txt, as older repositories have it; its normalizer beside tokenizer.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.tokenizer_limits import check_size
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = "vocab.txt"
CLASSES = tuple(
    f"{name}Tokenizer{fast}" for name in ("Bert", "DistilBert", "Electra") for fast in ("", "Fast")
)
# model_type of families for which transformers 5.24 has this tokenizer (models/auto/tokenization_auto.py)
MODEL_TYPES = ("bert", "distilbert", "nomic_bert")
SPECIAL = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}


def has_word_pieces(folder: Path) -> bool:
    """Whether the file is there."""
    return (folder / VOCABULARY).is_file()


def read_word_pieces(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A `tokenizers.Tokenizer` and tokenizer_config.json's content; CheckpointError names what is strange."""
    settings = {
        name: value
        for file in ("special_tokens_map.json", "tokenizer_config.json")
        if (folder / file).is_file()
        for name, value in read_object(folder / file).items()
    }
    path, kind = folder / VOCABULARY, settings.get("tokenizer_class")
    if kind not in (None, *CLASSES):
        raise CheckpointError(
            f"{folder}: {VOCABULARY} is read for {CLASSES[0]} only, not for {kind!r:.80};"
            " write a tokenizer.json with transformers"
        )
    if (folder / "added_tokens.json").is_file():
        raise CheckpointError(
            f"{folder}: added_tokens.json beside {VOCABULARY} is not read;"
            " write a tokenizer.json with transformers"
        )
    vocabulary = _vocabulary(path)
    special = {name: _text(settings.get(name)) or default for name, default in SPECIAL.items()}
    for name in ("unk_token", "sep_token", "cls_token"):
        if special[name] not in vocabulary:
            raise CheckpointError(f"{path} has no {special[name]!r:.80}, which is the {name}")
    tokenizer = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=special["unk_token"]))
    tokenizer.normalizer = _normalizer(settings, path)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in special.values() if text in vocabulary]
    )
    begin, end = special["cls_token"], special["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin}:0 $A:0 {end}:0",
        pair=f"{begin}:0 $A:0 {end}:0 $B:1 {end}:1",
        special_tokens=[(begin, vocabulary[begin]), (end, vocabulary[end])],
    )
    return tokenizer, special | settings


def normalize_as_bert(tokenizer: Any, settings: dict[str, Any], folder: Path) -> None:
    """Let tokenizer_config.json decide on lower case and accents where BERT's class reads tokenizer.json.

    The class takes the vocabulary of the file and makes a normalizer itself (transformers 5.24,
    models/bert/tokenization_bert.py). So sentence-transformers 6.2 loses the Lowercase that it has saved.
    """
    path, kind = folder / "config.json", settings.get("tokenizer_class")
    model_type = read_object(path).get("model_type") if path.is_file() else None
    known = kind in CLASSES or (kind is None and model_type is not None)
    if known and model_type in (None, *MODEL_TYPES) and isinstance(tokenizer.model, models.WordPiece):
        tokenizer.normalizer = _normalizer(settings, folder / "tokenizer_config.json")


def _normalizer(settings: dict[str, Any], path: Path) -> Any:
    """What BERT's class makes of its options."""
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(_flag(settings, "tokenize_chinese_chars", path, default=True)),
        strip_accents=_flag(settings, "strip_accents", path, default=None),
        lowercase=bool(_flag(settings, "do_lower_case", path, default=True)),
    )


def _vocabulary(path: Path) -> dict[str, int]:
    """A token per line; its number is its id."""
    check_size(path)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not text: {error}") from None
    if lines[-1] == "":
        lines.pop()
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    if len(vocabulary) != len(lines):
        raise CheckpointError(f"{path} has a token twice")
    return vocabulary


def _flag(settings: dict[str, Any], name: str, path: Path, *, default: bool | None) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path.parent}: {name} must be true or false, not {value!r:.80}")
    return default if value is None else value


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
