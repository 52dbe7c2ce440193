"""Hermes, Qwen 2.5 and Qwen 3: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

from __future__ import annotations

from armllm.server.events import Event, Text, split_at
from armllm.server.tools.calls import Calls, Stateful

START, END = "<tool_call>", "</tool_call>"


class HermesParser(Stateful):
    """Calls between tags, text before, between and after them."""

    def __init__(self, names: frozenset[str]) -> None:  # noqa: ARG002 - a tag says plainly that it is a call
        super().__init__()
        self._calls = Calls()

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        if self._state == "call":
            return [Text(START + event.text) for event in self._calls.finish() if isinstance(event, Text)]
        rest = self._buffer if self._state == "text" else ""
        return [Text(rest)] if rest.strip() or (rest and not self._calls.count) else []

    def _text(self) -> list[Event]:
        before, found, rest = split_at(START, self._buffer)
        shown = before.rstrip()
        if found:
            self._state, self._buffer = "call", rest
        else:  # white space may turn out to stand before a call
            self._buffer = before[len(shown) :] + rest
        return [Text(shown)] if shown else []

    def _call(self) -> list[Event]:
        events, used, ended = self._calls.feed(self._buffer)
        self._buffer = self._buffer[used:]
        if ended and events and isinstance(events[-1], Text):  # no call: the tag is text too
            self._state = "text"
            return [Text(START + events[-1].text)]
        if ended:
            self._state = "end"
        return events

    def _end(self) -> list[Event]:
        """What a call that breaks off half-way leaves behind goes with it."""
        _, found, self._buffer = split_at(END, self._buffer)
        if found:
            self._state = "text"
        return []
