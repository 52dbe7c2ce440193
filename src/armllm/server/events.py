"""The parts of a model's text (answer, reasoning, calls), and the protocol of the parsers that find them.

A parser gets text as it is generated and is asked for the same answer whether it comes at once or in pieces,
so that a streamed and a plain answer can't differ.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol, TypeAlias


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """The model calls a tool; its arguments follow under the same index."""

    index: int
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Event: TypeAlias = Text | Reasoning | CallStart | CallArguments


class Parser(Protocol):
    """Finds the events in one completion."""

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""


class PlainParser:
    """All text is answer."""

    def feed(self, text: str) -> list[Event]:
        """Pass the text on."""
        return [Text(text)] if text else []

    def finish(self) -> list[Event]:
        """Hold nothing back."""
        return []


def split_at(marker: str, buffer: str) -> tuple[str, bool, str]:
    """(text before the marker, whether it is there, rest); the rest may be the marker's beginning."""
    at = buffer.find(marker)
    if at >= 0:
        return buffer[:at], True, buffer[at + len(marker) :]
    for size in range(min(len(marker) - 1, len(buffer)), 0, -1):
        if buffer.endswith(marker[:size]):
            return buffer[:-size], False, buffer[-size:]
    return buffer, False, ""
