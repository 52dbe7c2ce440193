"""Mistral: ``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]``, newer ones ``[TOOL_CALLS]name[ARGS]{…}``."""

from __future__ import annotations

import re

from armllm.server.events import CallArguments, CallStart, Event, Text, split_at
from armllm.server.tools.calls import ListParser, Stateful
from armllm.server.tools.scan import ValueScanner

MARKER = "[TOOL_CALLS]"
_NAME = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*$")


class MistralParser(Stateful):
    """Text up to the marker, calls after it."""

    def __init__(self, names: frozenset[str]) -> None:  # noqa: ARG002 - the marker says plainly that it is a call
        super().__init__()
        self._list = ListParser()
        self._arguments: ValueScanner | None = None
        self._count = 0

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        if self._state == "listed":
            return self._list.finish()
        shown = self._buffer if self._state in ("text", "marked") else ""
        return [Text(shown)] if shown.strip() or (shown and not self._count) else []

    def _text(self) -> list[Event]:
        before, found, rest = split_at(MARKER, self._buffer)
        shown = before.rstrip()
        if found:
            self._state, self._buffer = "marked", rest.lstrip()
        else:
            self._buffer = before[len(shown) :] + rest
        return [Text(shown)] if shown else []

    def _marked(self) -> list[Event]:
        """After the marker: a list, or the name of a tool up to its arguments."""
        self._buffer = self._buffer.lstrip()
        if self._buffer.startswith("["):
            self._state = "listed"
            return []
        name, brace, _ = self._buffer.partition("{")
        if not brace:
            return []
        match = _NAME.match(name)
        if match is None:
            self._state, self._buffer = "text", self._buffer[len(name) + 1 :]
            return [Text(name + brace)]
        self._state, self._buffer = "named", self._buffer[len(name) :]
        self._arguments = ValueScanner()
        return [CallStart(self._count, match.group(1))]

    def _listed(self) -> list[Event]:
        text, self._buffer = self._buffer, ""
        return self._list.feed(text)

    def _named(self) -> list[Event]:
        """The arguments of one call; another marker may follow."""
        scanner = self._arguments
        if scanner is None:
            raise AssertionError("no call has begun")
        used = scanner.feed(self._buffer)
        piece, self._buffer = self._buffer[:used], self._buffer[used:]
        events: list[Event] = [CallArguments(self._count, piece)]
        if scanner.done or scanner.failed:
            self._count += 1
            self._state = "text"
        return events
