"""Reads JSON that is still being written, as far as tool calls need it."""

from __future__ import annotations

import json
import re
from typing import Any

_OPENING = {"{": "}", "[": "]"}
_PLAIN = re.compile(r'[^"\\]+')


class ValueScanner:
    """Finds the end of one JSON value; brackets and strings are followed, the rest is taken as it is."""

    def __init__(self) -> None:
        self.text = ""
        self.done = False
        self.failed = False
        self._closing: list[str] = []
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int:
        """Take what belongs to the value; return how many characters that are."""
        at = 0
        while at < len(text) and not self.done and not self.failed:
            at += self._step(text, at)
        self.text += text[:at]
        return at

    def _step(self, text: str, at: int) -> int:
        char = text[at]
        if self._in_string:
            return self._string(text, at)
        if char == '"':
            self._in_string = True
        elif char in _OPENING:
            self._closing.append(_OPENING[char])
        elif self._closing:
            if char == self._closing[-1]:
                self._closing.pop()
                self.done = not self._closing
            elif char in "]}":
                self.failed = True
        elif char in ",]}" or char.isspace():  # the end of a number or a name, no part of it
            self.done = True
            return 0
        return 1

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
        elif text[at] == "\\":
            self._escaped = True
        elif text[at] == '"':
            self._in_string = False
            self.done = not self._closing
        else:
            plain = _PLAIN.match(text, at)
            return len(plain.group()) if plain else 1
        return 1


class CallScanner:
    """Reads one call: an object with a ``name`` and ``arguments`` (or ``parameters``).

    ``arguments`` grows by the very text that the model writes, as soon as ``name`` is known; a model that
    writes its arguments as JSON within a string is decoded.
    """

    def __init__(self) -> None:
        self.text = ""
        self.name: str | None = None
        self.done = False
        self.failed = False
        self._arguments: str | None = None
        self._taken = 0
        self._expected = "{"
        self._key = ""
        self._value: ValueScanner | None = None

    def feed(self, text: str) -> int:
        """Take what belongs to the call; return how many characters that are."""
        at = 0
        while at < len(text) and not self.done and not self.failed:
            at += self._step(text[at:]) if self._value else self._between(text[at])
        self.text += text[:at]
        return at

    def take_arguments(self) -> str:
        """The part of the arguments that is new; empty while the name is unknown."""
        if self.name is None:
            return ""
        arguments = self._arguments
        if arguments is None:
            arguments = "{}" if self.done else ""
        new, self._taken = arguments[self._taken :], len(arguments)
        return new

    def _step(self, text: str) -> int:
        """Go on within a key or a value."""
        value = self._value
        if value is None:
            raise AssertionError("not within a value")
        used = value.feed(text)
        in_arguments = self._expected == "value" and self._key in ("arguments", "parameters")
        if in_arguments and not value.text.startswith(('"', "n")):
            self._arguments = value.text
        if value.failed:
            self.failed = True
        elif value.done:
            self._value = None
            self._end(value.text)
        return used

    def _end(self, text: str) -> None:
        """A key or a value is complete."""
        if self._expected == "key":
            self._key = str(self._decode(text))
            self._expected = ":"
            return
        self._expected = ","
        if self._key == "name":
            name = self._decode(text)
            if isinstance(name, str) and name:
                self.name = name
            else:
                self.failed = True
        elif self._key in ("arguments", "parameters"):
            decoded = self._decode(text)
            if isinstance(decoded, str):
                self._arguments = decoded
            elif decoded is None and not self.failed:
                self._arguments = "{}"

    def _decode(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.failed = True
            return None

    def _between(self, char: str) -> int:
        """Punctuation, or the first character of a key or a value, which is left to its scanner."""
        if char.isspace():
            return 1
        if self._expected == "key" and char == '"':
            self._value = ValueScanner()
            return 0
        if self._expected == ":" and char == ":":
            self._expected = "value"
        elif self._expected == "value" and char not in ",:]}":
            self._value = ValueScanner()
            return 0
        elif self._expected in "{," and char == self._expected:
            self._expected = "key"
        elif self._expected in (",", "key") and char == "}":
            self.done = self.name is not None
            self.failed = not self.done
        else:
            self.failed = True
        return 1
