"""The checkpoint's tokenizer, read by the `tokenizers` library."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from armllm.checkpoint.byte_pairs import has_byte_pairs, read_byte_pairs
from armllm.checkpoint.json_file import read_object
from armllm.checkpoint.tokenizer_limits import (
    check_size,
    check_tables,
    check_tokenizer,
    is_library_error,
)
from armllm.checkpoint.word_pieces import has_word_pieces, normalize_as_bert, read_word_pieces
from armllm.errors import CheckpointError, RequestError, first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# `encode` keeps the interpreter's lock, which would halt everything else for as long as a long text takes;
# `encode_batch_fast` lets go of it.
LONG_TEXT = 2000
TEXTS = 256  # at a time
CUT_TOKENS = 64  # more than are needed, as some differ where a text was cut
# of sentence-transformers; its first versions had a name for each family
SENTENCE_SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SEGMENTS = "token_type_ids"
SAMPLE = "a"  # a text of some tokens


class _Pair(NamedTuple):
    """Two texts as one prompt, and to which of them each token belongs."""

    ids: list[int]
    type_ids: list[int]


class Tokenizer:
    """Text to token ids and back; what goes around a prompt is tokenizer.json's own business.

    ``eos_token_id`` is None where tokenizer_config.json names no end token. ``vocab_size`` is one more than
    the largest token id, added tokens included; ``longest_token`` is how many characters of a text one token
    stands for at most.
    """

    def __init__(self, folder: Path) -> None:
        if folder.suffix == ".gguf" and folder.is_file():
            from armllm.checkpoint.gguf_tokenizer import read_gguf_tokenizer  # noqa: PLC0415 - imports torch

            self._tokenizer, self.settings = read_gguf_tokenizer(folder)
        else:
            self._tokenizer, self.settings = _read_folder(folder)
            if sentence_settings(folder)[1].get("do_lower_case"):
                self._tokenizer.normalizer = _lowering(self._tokenizer.normalizer)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        vocabulary = check_tokenizer(self._tokenizer, folder)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.longest_token = max(map(len, vocabulary), default=1)
        self.folder = folder
        self._spelled: dict[int, str] = {}  # at most the whole vocabulary
        self.bos_token_id = self._special("bos_token")
        self.eos_token_id = self._special("eos_token")
        self.cut_side = "left" if self.settings.get("truncation_side") == "left" else "right"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, with what the tokenizer puts around a prompt (a begin token, say)."""
        with _refusing("the prompt"):
            if len(text) > LONG_TEXT:
                encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
                ids: list[int] = encodings[0].ids
            else:
                ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_each(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> Iterator[list[int]]:
        """As `encode`, by all cores that TOKENIZERS_PARALLELISM allows."""
        for first in range(0, len(texts), TEXTS):
            some = texts[first : first + TEXTS]
            with _refusing("a prompt"):
                encodings = self._tokenizer.encode_batch_fast(some, add_special_tokens=add_special_tokens)
            yield from (one.ids for one in encodings)

    def encode_beginning(self, text: str, most: int, *, add_special_tokens: bool = True) -> list[int]:
        """As `encode`, with no more than ``most`` tokens: the text loses its end, not its special tokens.

        It loses its beginning if tokenizer_config.json has ``truncation_side`` left.
        """
        text = self._near(text, most)
        token_ids = self.encode(text, add_special_tokens=add_special_tokens)
        if len(token_ids) <= most:
            return token_ids
        around = self._tokenizer.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        encoding.truncate(max(0, most - around), direction=self.cut_side)
        ids: list[int] = self._tokenizer.post_process(encoding, None, add_special_tokens).ids
        return ids[:most]

    def _near(self, text: str, most: int) -> str:
        """What of a text has more than the ``most`` tokens that stay of it."""
        size = self.longest_token * (most + CUT_TOKENS)
        return text[:size] if self.cut_side == "right" else text[-size:]

    def encode_pair(
        self, first: str, second: str, *, truncate_to: int | None = None
    ) -> tuple[list[int], int | None]:
        """Token ids of two texts as one prompt, and where the second one's segment begins, if it has one.

        ``truncate_to``: tokens that stay at most; the longer text loses its end.
        """
        return next(self.encode_pairs([(first, second)], truncate_to=truncate_to))

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], *, truncate_to: int | None = None
    ) -> Iterator[tuple[list[int], int | None]]:
        """As `encode_pair`, by the same cores."""
        for first in range(0, len(pairs), TEXTS):
            some = pairs[first : first + TEXTS]
            if truncate_to is not None:
                some = [(self._near(one, truncate_to), self._near(two, truncate_to)) for one, two in some]
            with _refusing("the pair of texts"):
                encodings = self._tokenizer.encode_batch_fast(some)
                if truncate_to is not None:
                    encodings = [
                        one if len(one.ids) <= truncate_to else self._truncated_pair(*pair, truncate_to)
                        for one, pair in zip(encodings, some, strict=True)
                    ]
            for encoding in encodings:
                types: list[int] = encoding.type_ids if self._has_segments() else []
                yield list(encoding.ids), types.index(1) if 1 in types else None

    def _has_segments(self) -> bool:
        """Whether transformers tells the model which text of a pair a token belongs to."""
        inputs = self.settings.get("model_input_names")
        if isinstance(inputs, list):
            return SEGMENTS in inputs
        return self.settings.get("tokenizer_class") != "TokenizersBackend"  # its default of transformers 5

    def _truncated_pair(self, first: str, second: str, most: int) -> _Pair:
        """Of two texts that have more tokens than ``most`` together.

        `Encoding.truncate` would keep what it cuts in pieces, and `post_process` would pair all of them.
        """
        one, two = (self._tokenizer.encode(text, add_special_tokens=False).ids for text in (first, second))
        room = max(0, most - self._tokenizer.num_special_tokens_to_add(is_pair=True))
        # as transformers does: an odd token is the longer text's, of equal ones the second's
        of_shorter = min(room // 2, len(one), len(two))
        sizes = (of_shorter, room - of_shorter) if len(one) <= len(two) else (room - of_shorter, of_shorter)
        texts = [self._cut(ids, size) for ids, size in zip((one, two), sizes, strict=True)]
        around = self._tokenizer.encode(SAMPLE, SAMPLE)
        if not {0, 1}.issubset(around.sequence_ids):
            raise RequestError(f"a pair of texts can't be cut: the tokenizer has no token for {SAMPLE!r}")
        found, place = _Pair([], []), 0
        for text, group in itertools.groupby(around.sequence_ids):
            length = len([*group])
            ids = around.ids[place : place + length] if text is None else texts[text]
            found.ids.extend(ids)
            found.type_ids.extend([around.type_ids[place]] * len(ids))
            place += length
        return found

    def _cut(self, token_ids: list[int], most: int) -> list[int]:
        """The tokens of a text that stay."""
        return token_ids[:most] if self.cut_side == "right" else token_ids[max(0, len(token_ids) - most) :]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def spell(self, token_id: int) -> str:
        """The text of one token, special or not; cached, since likely tokens are likely again."""
        text = self._spelled.get(token_id)
        if text is None:
            text = self._spelled[token_id] = self.decode([token_id], skip_special_tokens=False)
        return text

    def token_id(self, text: str) -> int | None:
        """The token that stands for this text alone, if there is one."""
        found: int | None = self._tokenizer.token_to_id(text)
        return found

    def special_token_ids(self) -> set[int]:
        """The tokens that `decode` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token_id for token_id, token in added.items() if token.special}

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
        try:
            return None if text is None else self._tokenizer.token_to_id(text)
        except UnicodeEncodeError:
            raise CheckpointError(f"{self.folder}: {name} {text!r:.100} is no text") from None

    def _text(self, name: str) -> str | None:
        token = self.settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        return text if isinstance(text, str) else None


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """RequestError for what the library raises."""
    try:
        yield
    except BaseException as error:  # lone surrogates, for one
        if not is_library_error(error):
            raise
        raise RequestError(f"{what} can't be tokenized: {first_line(error)}") from None


def sentence_settings(folder: Path) -> tuple[Path, dict[str, Any]]:
    """What sentence-transformers says of a checkpoint's texts, and in which file; empty if in none."""
    for name in SENTENCE_SETTINGS:
        if (folder / name).is_file() and (values := read_object(folder / name)):
            return folder / name, values
    return folder / SENTENCE_SETTINGS[0], {}


def _lowering(before: Any) -> Any:
    """``before`` behind lower case, where it has none: what sentence-transformers makes of do_lower_case."""
    steps = [*before] if isinstance(before, tokenizers.normalizers.Sequence) else [before]  # type: ignore[misc]
    if any(isinstance(step, tokenizers.normalizers.Lowercase) for step in steps):
        return before
    lower = [tokenizers.normalizers.Lowercase(), *(step for step in steps if step is not None)]
    return tokenizers.normalizers.Sequence(lower)


def _read_folder(folder: Path) -> tuple[Any, dict[str, Any]]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if has_byte_pairs(folder):
            return read_byte_pairs(folder)
        if has_word_pieces(folder):
            return read_word_pieces(folder)
        raise CheckpointError(
            f"{folder} has no tokenizer.json, vocab.txt, nor vocab.json with merges.txt; other files are not"
            " read (convert it with transformers, or pass skip_tokenizer_init=True and prompts of token ids)"
        )
    check_size(path)
    check_tables(path)
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise CheckpointError(
            f"{path} is not a tokenizer that `tokenizers` reads: {first_line(error)}"
        ) from None
    path = folder / "tokenizer_config.json"
    settings = read_object(path) if path.is_file() else {}
    normalize_as_bert(tokenizer, settings, folder)
    return tokenizer, settings
