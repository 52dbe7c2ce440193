"""Llama 3.1 and later: the whole answer is ``{"name": …, "parameters": {…}}``, several divided by ``;``."""

from __future__ import annotations

from armllm.server.events import Event, Text
from armllm.server.tools.calls import Calls

PYTHON_TAG = "<|python_tag|>"


class Llama3Parser:
    """Calls if the answer starts with one of a tool that the request has, else text."""

    def __init__(self, names: frozenset[str]) -> None:
        self._calls = Calls(names)
        self._state = "start"
        self._buffer = ""

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""
        self._buffer += text
        events: list[Event] = []
        while self._buffer:
            if self._state == "text":
                events.append(Text(self._buffer))
                self._buffer = ""
            elif self._state == "call":
                events += self._call()
            elif not self._begin():
                break
        return events

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        events = self._calls.finish()
        if self._state == "start" and self._buffer:
            events.append(Text(self._buffer))
        return events

    def _begin(self) -> bool:
        """Before the first call or between two; False while the next characters don't tell yet."""
        start = self._buffer.lstrip("; \t\r\n" if self._state == "between" else None)
        if not start or (len(start) < len(PYTHON_TAG) and PYTHON_TAG.startswith(start)):
            return False
        start = start.removeprefix(PYTHON_TAG).lstrip()
        if start.startswith("{"):
            self._state, self._buffer = "call", start
        elif start:
            self._state = "text"
        return bool(start)

    def _call(self) -> list[Event]:
        events, used, ended = self._calls.feed(self._buffer)
        self._buffer = self._buffer[used:]
        if ended:
            self._state = "text" if events and isinstance(events[-1], Text) else "between"
        return events
