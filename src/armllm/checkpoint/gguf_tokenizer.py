"""The tokenizer in a GGUF file, as the `tokenizers` library would have read it from tokenizer.json.

Source of the kinds and of their regular expressions: llama.cpp's llama-vocab.cpp and the models' own files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from armllm.checkpoint.gguf_file import GGUFFile, open_gguf
from armllm.checkpoint.tokenizer_limits import LONGEST_TOKEN, is_library_error
from armllm.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# normal, unknown, control, user-defined, unused (what fills a vocabulary up) and byte
TOKEN_TYPES = {1, 2, 3, 4, 5, 6}
CONTROL, USER_DEFINED = 3, 4
MAX_CHARACTERS = 8 << 20  # of all tokens: each is cut at every place to find its merges
LLAMA_3 = ("falcon-h1", "lfm2", "llama-bpe", "llama3", "pixtral")
QWEN = ("deepseek-r1-qwen", "qwen2", "qwen35")
SPACE = "\u2581"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# OpenAI's o200k: words begin with a capital letter or have none behind small ones
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tokenizer.ggml.pre -> how text is split before byte pairs are merged; None: GPT-2's own expression
SPLITS = {
    "default": None,
    "gpt-2": None,
    "phi-2": None,
    **dict.fromkeys(LLAMA_3, _WORDS.format(digits="{1,3}", marks="")),
    "gpt-4o": _O200K,
    "qwen2": _WORDS.format(digits="", marks=""),
    "deepseek-r1-qwen": _WORDS.format(digits="", marks=""),
    "qwen35": _WORDS.format(digits="", marks=r"\p{M}"),
    "refact": None,
    "smollm": None,
}
SINGLE_DIGITS = ("refact", "smollm")  # the first is Granite 3's
SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id"}


def read_gguf_tokenizer(path: Path) -> tuple[Any, dict[str, Any]]:
    """A `tokenizers.Tokenizer` and tokenizer_config.json's content; CheckpointError names what is strange."""
    file = open_gguf(path)
    kind = str(file.get("tokenizer.ggml.model"))
    tokens = file.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError(f"{path} has no tokenizer; give a folder with tokenizer.json as tokenizer")
    if (problem := next(_problems(file, tokens), None)) is not None:
        raise CheckpointError(f"{path}: tokenizer.ggml.{problem}")
    if kind not in BUILDERS:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.model {kind!r} is not supported, only gpt2 and llama; give a folder with"
            " tokenizer.json as tokenizer"
        )
    try:
        tokenizer = BUILDERS[kind](file, tokens)
    except CheckpointError:
        raise
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise CheckpointError(f"{path}: its tokenizer does not hold together: {error!s:.200}") from None
    types = file.get("tokenizer.ggml.token_type", [])
    for token, token_type in zip(tokens, types, strict=bool(types)):
        if token_type == CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    ids = {name: file.get(f"tokenizer.ggml.{key}") for name, key in SPECIAL.items()}
    settings = {name: tokens[index] for name, index in ids.items() if index in range(len(tokens))}
    _add_ends(file, tokenizer, settings, default_bos=kind == "llama" or _pre(file) in LLAMA_3)
    template = file.get("tokenizer.chat_template")
    return tokenizer, settings | ({"chat_template": template} if template else {})


def _problems(file: GGUFFile, tokens: list[Any]) -> Iterator[str]:
    """What is wrong with the lists: of another kind, or longer, than a tokenizer's."""
    for key, of, name in (("tokens", str, "texts"), ("merges", str, "texts"), ("scores", float, "numbers")):
        items = file.get(f"tokenizer.ggml.{key}", [])
        if not isinstance(items, list) or not all(isinstance(item, of) for item in items):
            yield f"{key} must be a list of {name}"
    longest, total = max(map(len, tokens)), sum(map(len, tokens))
    if longest > LONGEST_TOKEN:
        yield f"tokens has one of {longest:,} characters; no more than {LONGEST_TOKEN:,} are taken"
    if total > MAX_CHARACTERS:
        yield f"tokens has {total:,} characters; no more than {MAX_CHARACTERS:,} are taken"
    types = file.get("tokenizer.ggml.token_type", [])
    if not isinstance(types, list) or len(types) not in {0, len(tokens)}:
        yield f"token_type must be a list of one type per token, not {types!r:.100}"
    if unknown := set(types) - TOKEN_TYPES:
        yield f"token_type has {min(unknown)}, which is none of llama.cpp's types"
    for key in SPECIAL.values():
        index = file.get(f"tokenizer.ggml.{key}")
        if index is not None and not (isinstance(index, int) and 0 <= index < len(tokens)):
            yield f"{key} is {index!r:.100}, and there are {len(tokens)} tokens"


def _pre(file: GGUFFile) -> str:
    return str(file.get("tokenizer.ggml.pre", "default"))


def _byte_level(file: GGUFFile, tokens: list[str]) -> Any:
    """Byte pairs of text whose bytes are written as letters (Radford et al. 2019)."""
    pre = _pre(file)
    if pre not in SPLITS:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported, only {', '.join(SPLITS)}; give a"
            " folder with tokenizer.json as tokenizer"
        )
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", [])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, fuse_unk=False, ignore_merges=pre in LLAMA_3)
    )
    expression = SPLITS[pre]
    if expression is None:
        first = [pre_tokenizers.Digits(individual_digits=True)] if pre in SINGLE_DIGITS else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [*first, pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(expression), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if pre in QWEN:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(file: GGUFFile, tokens: list[str]) -> Any:
    """SentencePiece's byte pairs (Kudo and Richardson 2018): merges in order of their results' scores."""
    scores = file.get("tokenizer.ggml.scores", [])
    if len(scores) != len(tokens):
        raise CheckpointError(f"{file.path}: tokenizer.ggml.scores must hold a score per token")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-score, vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    unknown = file.get("tokenizer.ggml.unknown_token_id", 0)
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for *_, left, right in ranked],
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(SPACE)] if prefix else []), normalizers.Replace(" ", SPACE)]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if prefix else []),
        ]
    )
    return tokenizer


def _add_ends(file: GGUFFile, tokenizer: Any, settings: dict[str, Any], *, default_bos: bool) -> None:
    """Begin and end tokens around a prompt, where the file asks for them."""
    begin = settings.get("bos_token") if file.get("tokenizer.ggml.add_bos_token", default_bos) else None
    end = settings.get("eos_token") if file.get("tokenizer.ggml.add_eos_token", False) else None
    around = [token for token in (begin, end) if token is not None]
    if around:
        single = f"{begin or ''} $A {end or ''}".split()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[(token, tokenizer.token_to_id(token)) for token in around]
        )


BUILDERS = {"gpt2": _byte_level, "llama": _sentence_piece}
