"""Prompts of requests: texts and token ids, tokenized, cut and checked."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

from armllm.errors import RequestError
from armllm.inputs import PicturePrompt
from armllm.server.errors import ApiError
from armllm.server.limits import HEAVY_TEXT, LONG_TEXT, MANY_TEXTS, Offload, away_if
from armllm.server.protocol.base import MAX_PROMPTS
from armllm.tokenizer import CUT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from armllm.engine.facts import EngineFacts

T = TypeVar("T")

CHARACTERS_PER_TOKEN = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given, and the text it came from."""

    token_ids: list[int]
    text: str | None = None
    second_segment: int | None = None  # where the second text of a pair begins
    pictures: tuple[bytes, ...] = ()

    @property
    def for_engine(self) -> list[int] | PicturePrompt:
        """What the engine takes."""
        return PicturePrompt(self.token_ids, self.pictures) if self.pictures else self.token_ids


class PromptReader:
    """Reads what requests give a model, within its ``max_model_len``."""

    def __init__(self, facts: EngineFacts, offload: Offload) -> None:
        self._tokenizer = facts.tokenizer
        self._max_model_len = facts.max_model_len
        self._vocab_size = facts.vocab_size
        self._offload = offload
        self.longest_text = facts.max_model_len * facts.tokenizer.longest_token  # characters

    async def encode(self, text: str, *, add_special_tokens: bool, truncate_to: int | None = None) -> Prompt:
        """Tokenize a prompt; the last ``truncate_to`` tokens stay."""
        (prompt,) = await self._encode_all([text], add_special_tokens, truncate_to, keep_end=True)
        return prompt

    async def _encode_all(
        self, texts: Sequence[str], add_special_tokens: bool, truncate_to: int | None, *, keep_end: bool
    ) -> list[Prompt]:
        """Tokenize texts; the last ``truncate_to`` tokens of each stay, or the first ones."""
        for text in texts:
            self._check_characters(text, truncate_to)
        found: list[Prompt] = []
        for some in _parts(texts):
            work = functools.partial(self._encode_some, some, add_special_tokens, truncate_to, keep_end)
            token_ids = await self._away(sum(map(len, some)), len(some), work)
            prompts = map(Prompt, token_ids, some)
            found += [truncated(prompt, truncate_to, keep_end=keep_end) for prompt in prompts]
        return found

    def _check_characters(self, text: str, truncate_to: int | None) -> None:
        if len(text) > self.longest_text and (truncate_to is None or truncate_to > self._max_model_len):
            raise ApiError(
                f"the prompt has {len(text)} characters, more than the model's max_model_len"
                f" {self._max_model_len} tokens can hold",
                param="prompt",
                code="context_length_exceeded",
            )

    async def _away(self, characters: int, texts: int, work: Callable[[], T]) -> T:
        """The result of ``work`` on texts: of many or long ones away from the event loop."""
        if characters > HEAVY_TEXT:
            return await self._offload.run(work)
        return await away_if(characters > LONG_TEXT or texts > MANY_TEXTS, work)

    def _encode_some(
        self, texts: Sequence[str], add_special_tokens: bool, truncate_to: int | None, keep_end: bool
    ) -> list[list[int]]:
        if truncate_to is None and len(texts) > 1:
            return list(self._tokenizer.encode_each(texts, add_special_tokens=add_special_tokens))
        return [self._encode(text, add_special_tokens, truncate_to, keep_end) for text in texts]

    def _encode(
        self, text: str, add_special_tokens: bool, truncate_to: int | None, keep_end: bool
    ) -> list[int]:
        """Token ids of a text, of which only ``truncate_to`` need to be right.

        Of the last ones a part at the end is enough, if it has more tokens than that: where it was cut, some
        may differ.
        """
        if truncate_to is not None and not keep_end:
            return self._tokenizer.encode_beginning(text, truncate_to, add_special_tokens=add_special_tokens)
        if truncate_to is not None:
            enough = truncate_to + CUT_TOKENS
            size = CHARACTERS_PER_TOKEN * enough
            while size < len(text):
                token_ids = self._tokenizer.encode(text[-size:], add_special_tokens=add_special_tokens)
                if len(token_ids) >= enough:
                    return token_ids
                size *= 2
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def read(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[list[int]],
        *,
        field: str,
        add_special_tokens: bool,
        truncate_to: int | None,
        copies: int = 1,
        room: int = 1,
    ) -> list[Prompt]:
        """Prompts from a text, token ids, or a list of either; ``copies`` of each will be answered.

        Each leaves ``room`` for a token of output, or 0. A text without output loses its end if it is cut, as
        in sentence-transformers.
        """
        truncate_to = self._most(truncate_to)
        if isinstance(inputs, str):
            inputs = [inputs]
        if not inputs:
            raise ApiError(f"{field} must not be an empty list", param=field, code="invalid_value")
        several = cast("list[str | list[int]]", [inputs] if isinstance(inputs[0], int) else inputs)
        if len(several) * copies > MAX_PROMPTS:
            raise ApiError(f"{field} asks for more than {MAX_PROMPTS} answers", param=field)
        texts = [one for one in several if isinstance(one, str)]
        keep_end = room > 0
        encoded = iter(await self._encode_all(texts, add_special_tokens, truncate_to, keep_end=keep_end))
        found = []
        for one in several:
            known = None if isinstance(one, str) else truncated(Prompt(one), truncate_to, keep_end=keep_end)
            prompt = known or next(encoded)
            self._check_prompt(prompt, room)
            check_vocabulary(prompt.token_ids, self._vocab_size, field)
            found.append(prompt)
        return found

    async def pairs(
        self, first: Sequence[Any], second: Sequence[Any], *, truncate_to: int | None
    ) -> list[Prompt]:
        """Prompts of pairs of texts, which a cross-encoder reads together."""
        truncate_to = self._most(truncate_to)
        if not all(isinstance(text, str) for text in (*first, *second)):
            raise ApiError("this model scores pairs of texts; token ids can't be paired")
        texts = (*first, *second)
        for text in texts:
            self._check_characters(text, truncate_to)
        work = functools.partial(self._encode_pairs, first, second, truncate_to)
        prompts = await self._away(sum(map(len, texts)), len(second), work)
        for prompt in prompts:
            self._check_prompt(prompt, 0)
        return prompts

    def _encode_pairs(
        self, first: Sequence[str], second: Sequence[str], truncate_to: int | None
    ) -> list[Prompt]:
        pairs = list(zip(first, second, strict=True))
        encoded = self._tokenizer.encode_pairs(pairs, truncate_to=truncate_to)
        return [Prompt(token_ids, None, segment) for token_ids, segment in encoded]

    def _most(self, truncate_to: int | None) -> int | None:
        """Of -1, as many tokens as the model takes."""
        return self._max_model_len if truncate_to == -1 else truncate_to

    def _check_prompt(self, prompt: Prompt, room: int = 1) -> None:
        """Refuse a prompt that is empty or leaves no ``room`` for a token."""
        if room:
            self.output_tokens(prompt, None)
            return
        size = len(prompt.token_ids)
        if size == 0:
            raise ApiError("the prompt is empty: it has no tokens", param="prompt", code="invalid_value")
        if size > self._max_model_len:
            raise ApiError(
                f"the prompt has {size} tokens, more than the model's max_model_len {self._max_model_len};"
                " truncate_prompt_tokens cuts it",
                param="prompt",
                code="context_length_exceeded",
            )

    def output_tokens(self, prompt: Prompt, max_tokens: int | None) -> int:
        """How many tokens may follow the prompt: as the request says, or all that fit; ApiError if none."""
        size = len(prompt.token_ids)
        room = self._max_model_len - size
        if size == 0:
            raise ApiError("the prompt is empty: it has no tokens", param="prompt", code="invalid_value")
        if room < max(max_tokens or 1, 1):
            asked = f"max_tokens is {max_tokens}" if max_tokens else "at least one must follow"
            raise ApiError(
                f"the prompt has {size} tokens and {asked}: together that is more than the model's"
                f" max_model_len {self._max_model_len}",
                param="prompt" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        return room if max_tokens is None else max_tokens


def truncated(prompt: Prompt, length: int | None, *, keep_end: bool) -> Prompt:
    """The last ``length`` tokens of a prompt, or the first ones."""
    if length is None or len(prompt.token_ids) <= length:
        return prompt
    return Prompt(prompt.token_ids[-length:] if keep_end else prompt.token_ids[:length])


def check_vocabulary(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Refuse token ids that the model does not have."""
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"{field}: token id {wrong} is not in the vocabulary of {vocab_size}")


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts one after the other, as many as are not heavy together."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > HEAVY_TEXT:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part
