"""Token ids to text, as they come, and stop strings in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# What a decoder may do to the first tokens it is given (drop a space, say) it does to these, which are not
# emitted.
CONTEXT_TOKENS = 6


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of some tokens."""


class Detokenizer:
    """The text of one sequence's output.

    Characters may span tokens, and a decoder looks at neighbours, so a window of tokens is decoded twice: up
    to what is already out, and with what is new. Characters that more bytes could still change are held back:
    an incomplete one in UTF-8 has at most three bytes, each of which decodes to at most one replacement
    character.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_token_ids: Sequence[int],
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.text = ""
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._stop = stop
        self._include_stop = include_stop
        self._longest_stop = max(map(len, stop), default=0)
        self._end = len(prompt_token_ids)
        self._start = max(0, self._end - CONTEXT_TOKENS)
        self._emitted = len(_settled(self._decode(prompt_token_ids[self._start :])))

    def catch_up(
        self,
        token_ids: Sequence[int],
        *,
        skip: int = 0,
        final: bool = False,
        may_stop: bool = True,
    ) -> str | None:
        """Extend ``text`` by all tokens that are new; return the stop string met, if any.

        The text then ends with it or before it. ``skip`` leaves the last tokens out. ``final`` emits an
        incomplete character too, as a replacement. Unless it ``may_stop``, stop strings are let through.
        """
        end = len(token_ids) - skip
        window = self._decode(token_ids[self._start : end])
        settled = window if final else _settled(window)
        searched = len(self.text)
        self.text += settled[self._emitted :]
        if len(settled) == len(window):
            self._start, self._end = self._end, end
            self._emitted = len(self._decode(token_ids[self._start : end]))
        else:
            self._emitted = max(self._emitted, len(settled))
        return self._cut_at_stop(searched) if may_stop else None

    def num_held_back(self) -> int:
        """Characters at the end of ``text`` that may turn out to begin a stop string, to be cut off then."""
        if self._include_stop:
            return 0
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self.text)), longest, -1):
                if self.text.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _cut_at_stop(self, searched: int) -> str | None:
        """Look for the stop string that was completed first, in text that was not searched before."""
        first = max(0, searched - self._longest_stop + 1)
        found = [
            (start + len(stop), start, stop)
            for stop in self._stop
            if (start := self.text.find(stop, first)) >= 0
        ]
        if not found:
            return None
        end, start, stop = min(found)
        self.text = self.text[: end if self._include_stop else start]
        return stop


def _settled(text: str) -> str:
    """The text without characters that may be incomplete."""
    unsettled = min(3, len(text) - len(text.rstrip(REPLACEMENT)))
    return text[: len(text) - unsettled]
