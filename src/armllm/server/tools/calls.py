"""What the formats have in common: calls read one after the other, and calls that a grammar enforces."""

from __future__ import annotations

from armllm.server.events import CallArguments, CallStart, Event, Text
from armllm.server.tools.scan import CallScanner


class Stateful:
    """A parser with a method per state, named after it, that takes from a buffer what it can.

    A method that has moved to another state is followed by that state's; else more text is needed.
    """

    def __init__(self) -> None:
        self._state = "text"
        self._buffer = ""

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""
        self._buffer += text
        events: list[Event] = []
        state = ""
        while self._buffer and state != self._state:
            state = self._state
            events += getattr(self, f"_{state}")()
        return events


class Calls:
    """Reads calls and numbers them."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.count = 0
        self._names = names
        self._scanner: CallScanner | None = None
        self._started = False

    def feed(self, text: str) -> tuple[list[Event], int, bool]:
        """(events, characters used, whether the call has ended).

        Text that turns out to be no call, or a call of a tool that is not among ``names`` where those are
        given, comes back as `Text`.
        """
        if self._scanner is None:
            self._scanner, self._started = CallScanner(), False
        scanner = self._scanner
        used = scanner.feed(text)
        events: list[Event] = []
        if not self._started and scanner.name is not None:
            if self._names is not None and scanner.name not in self._names:
                scanner.failed = True
            else:
                self._started = True
                events.append(CallStart(self.count, scanner.name))
        if self._started:
            new = scanner.take_arguments()
            if new:
                events.append(CallArguments(self.count, new))
        ended = scanner.done or scanner.failed
        if ended:
            if not self._started:
                events.append(Text(scanner.text))
            self._close()
        return events, used, ended

    def finish(self) -> list[Event]:
        """The output ended within a call: what can't be shown as one is text."""
        if self._scanner is None:
            return []
        text = "" if self._started else self._scanner.text
        self._close()
        return [Text(text)] if text else []

    def _close(self) -> None:
        self.count += self._started
        self._scanner = None


class ListParser:
    """A JSON list of calls, as the schema for ``tool_choice: required`` makes models write it."""

    def __init__(self) -> None:
        self._calls = Calls()
        self._within = False

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""
        events: list[Event] = []
        while text:
            if not self._within:
                text = text.lstrip(" \t\r\n[,]")
                self._within = bool(text)
                continue
            new, used, ended = self._calls.feed(text)
            events += new
            text = text[used:]
            self._within = not ended
        return events

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        return self._calls.finish()


class NamedParser:
    """All text is the arguments of one call, whose tool the request has named."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of text."""
        if not text:
            return []
        events: list[Event] = [] if self._started else [CallStart(0, self._name)]
        self._started = True
        return [*events, CallArguments(0, text)]

    def finish(self) -> list[Event]:
        """Hold nothing back."""
        return []
