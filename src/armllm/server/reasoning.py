"""Splits what a model thinks, between ``<think>`` and ``</think>``, from what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.server.events import Event, Parser, Reasoning, split_at
from armllm.server.tools.harmony import HarmonyParser

if TYPE_CHECKING:
    from collections.abc import Callable

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser:
    """Reasoning first, then whatever ``answer`` makes of the rest.

    Many chat templates put the opening tag into the prompt already, so the answer to "does it think?" depends
    on the prompt; where that says nothing, ``thinks`` is True for models that always do, and None for those
    that open the tag themselves if they want to.
    """

    def __init__(self, answer: Parser, prompt: str, *, thinks: bool | None) -> None:
        self._answer = answer
        opened, closed = prompt.rfind(OPEN), prompt.rfind(CLOSE)
        if prompt.rstrip().endswith((OPEN, CLOSE)):  # the prompt's last word decides
            thinks = opened > closed
        self._thinks = thinks
        self._opening = thinks is not False  # an opening tag may still come
        self._thinking = False  # the first text of the thought has been seen
        self._answering = False  # and that of the answer
        self._buffer = ""

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""
        if self._thinks is False:
            return self._say(text)
        self._buffer += text
        if self._opening:
            start = self._buffer.lstrip()
            if len(start) < len(OPEN) and OPEN.startswith(start):
                return []
            self._opening = False
            if start.startswith(OPEN):
                self._thinks = True
                self._buffer = start.removeprefix(OPEN)
            elif self._thinks is None:
                self._thinks = False
                text, self._buffer = self._buffer, ""
                return self._answer.feed(text)
        return self._think()

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        rest, self._buffer = self._buffer, ""
        if self._thinks is False:
            return self._answer.finish()
        if self._thinks is None:
            return [*self._answer.feed(rest), *self._answer.finish()]
        return [Reasoning(rest)] if rest.strip() else []

    def _think(self) -> list[Event]:
        if not self._thinking:
            self._buffer = self._buffer.lstrip()
            self._thinking = bool(self._buffer)
        thought, closed, rest = split_at(CLOSE, self._buffer)
        stripped = thought.rstrip()
        events: list[Event] = [Reasoning(stripped)] if stripped else []
        if not closed:
            # white space before a closing tag belongs to neither side
            self._buffer = thought[len(stripped) :] + rest
            return events
        self._thinks, self._buffer = False, ""
        return [*events, *self._say(rest)]

    def _say(self, text: str) -> list[Event]:
        if not self._answering:
            text = text.lstrip("\n")
            self._answering = bool(text)
        return self._answer.feed(text) if text else []


def _deepseek_r1(answer: Parser, prompt: str) -> Parser:
    return ThinkParser(answer, prompt, thinks=True)


def _qwen3(answer: Parser, prompt: str) -> Parser:
    return ThinkParser(answer, prompt, thinks=None)


def _openai_gptoss(answer: Parser, prompt: str) -> Parser:
    parser = answer if isinstance(answer, HarmonyParser) else HarmonyParser(frozenset(), answer, calls=False)
    parser.start_after(prompt)
    return parser


REASONING_PARSERS: dict[str, Callable[[Parser, str], Parser]] = {
    "deepseek_r1": _deepseek_r1,
    "openai_gptoss": _openai_gptoss,
    "qwen3": _qwen3,
}
