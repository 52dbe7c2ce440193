"""Token ids to text, as they come, and stop strings in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from armllm.engine.stop_strings import START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.engine.stop_strings import StopStrings

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

    Characters may span tokens, and a decoder looks at neighbors, so a window of tokens is decoded twice: up
    to what is already out, and with what is new. Characters that more bytes could still change are held back:
    an incomplete one in UTF-8 has at most three bytes, each of which decodes to at most one replacement
    character.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompt_token_ids: Sequence[int],
        *,
        stop: StopStrings | None = None,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.text = ""
        self._decoder = decoder
        self._skip_special_tokens = skip_special_tokens
        self._stop = stop
        self._stop_state = START
        self._include_stop = include_stop
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
        new = settled[self._emitted :]
        self.text += new
        if len(settled) == len(window):
            self._start, self._end = self._end, end
            self._emitted = len(self._decode(token_ids[self._start : end]))
        else:
            self._emitted = max(self._emitted, len(settled))
        return self._cut_at_stop(new, may_stop=may_stop)

    def num_held_back(self) -> int:
        """Characters at the end of ``text`` that may turn out to begin a stop string, to be cut off then."""
        if self._include_stop or self._stop is None:
            return 0
        return self._stop.num_begun(self._stop_state)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(token_ids, skip_special_tokens=self._skip_special_tokens)

    def _cut_at_stop(self, new: str, *, may_stop: bool) -> str | None:
        """Look for the stop string that was completed first, within what is new at the end of the text."""
        if self._stop is None:
            return None
        if not may_stop:
            self._stop_state = self._stop.skip(self._stop_state, new)
            return None
        self._stop_state, found = self._stop.advance(self._stop_state, new)
        if found is None:
            return None
        count, stop = found
        end = len(self.text) - len(new) + count
        self.text = self.text[: end if self._include_stop else end - len(stop)]
        return stop


def _settled(text: str) -> str:
    """The text without characters that may be incomplete."""
    unsettled = min(3, len(text) - len(text.rstrip(REPLACEMENT)))
    return text[: len(text) - unsettled]
