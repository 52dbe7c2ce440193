"""gpt-oss's format, harmony: messages with a channel, a recipient and a text.

A message is ``<|start|>assistant<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>TEXT<|end|>``; the
prompt has the first ``<|start|>assistant``. Source: OpenAI's "harmony response format" (2025).
"""

from __future__ import annotations

import re

from armllm.server.events import CallArguments, CallStart, Event, Parser, PlainParser, Reasoning
from armllm.server.tools.calls import Stateful

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
# How a message ends: the first three are written, the others show that no end was.
ENDS = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
# What an answer in this format ends with; both are end tokens of published checkpoints.
STOP_TOKENS = ("<|return|>", "<|call|>")
FUNCTIONS = "functions."
LONGEST_HEADER = 1000  # characters
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z_]+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser(Stateful):
    """Analysis is reasoning, a call of a function is a call, what is left goes to ``answer``.

    Without ``calls``, texts of calls are part of the answer. What is in no message is too.
    """

    def __init__(self, names: frozenset[str], answer: Parser | None = None, *, calls: bool = True) -> None:
        super().__init__()
        self._names = names
        self._answer = answer or PlainParser()
        self._calls = calls
        self._state = "begin"
        self._kind = "answer"  # of the message: answer, reasoning, call
        self._count = 0  # calls so far
        self._written = False  # some text of the message
        self._before = {"answer": False, "reasoning": False}  # whether earlier messages had text

    def start_after(self, prompt: str) -> None:
        """The prompt may end within a message or its header, which the output goes on with."""
        _, started, message = prompt.rpartition(START)
        header, found, text = message.partition(MESSAGE)
        if started and found and not any(end in text for end in ENDS):
            self._state = "body"
            self._read_header(header)
        elif started and not found and CHANNEL in header:
            self._state, self._buffer = "header", header

    def finish(self) -> list[Event]:
        """Say what is left when no more text comes."""
        rest, self._buffer = self._buffer, ""
        events = [] if self._state == "header" and rest.startswith((START, CHANNEL)) else self._say(rest)
        if self._state == "body":
            events += self._end_message()
        return [*events, *self._answer.finish()]

    def _begin(self) -> list[Event]:
        """Where a header may stand without its ``<|start|>``, which the prompt has."""
        for mark in (CHANNEL, MESSAGE, " to=", START):
            if self._buffer.startswith(mark):
                self._state = "header"
                return []
            if mark.startswith(self._buffer):
                return []
        self._state = "body"  # of no message
        return []

    def _header(self) -> list[Event]:
        """Up to the text of a message; one that breaks off says nothing, one without an end is text."""
        header, mark, rest = _first((MESSAGE, *ENDS[:4]), self._buffer.removeprefix(START))
        if len(header) > LONGEST_HEADER:
            self._state, self._buffer = "body", self._buffer.removeprefix(START).removeprefix(CHANNEL)
        elif mark == MESSAGE:
            self._state, self._buffer = "body", rest
            return self._read_header(header)
        elif mark:
            self._state, self._buffer = "between", (START if mark == START else "") + rest
        return []

    def _body(self) -> list[Event]:
        text, mark, rest = _first(ENDS, self._buffer)
        events = self._say(text)
        self._buffer = rest
        if not mark:
            return events
        events += self._end_message()
        self._state = "between"
        if mark in (START, CHANNEL):
            self._state, self._buffer = "header", mark + rest
        return events

    def _between(self) -> list[Event]:
        """After a message: the next one."""
        self._buffer = self._buffer.lstrip()
        if self._buffer:
            self._state = "begin"
        return []

    def _read_header(self, header: str) -> list[Event]:
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        to = recipient.group(1) if recipient else ""
        name = to.removeprefix(FUNCTIONS)
        self._written = False
        if name and (to.startswith(FUNCTIONS) or name in self._names):
            self._kind = "call" if self._calls else "answer"
        else:
            named = to not in ("", "user", "assistant", FUNCTIONS)
            thought = named or (channel is not None and channel.group(1) == "analysis")
            self._kind = "reasoning" if thought else "answer"
        return [CallStart(self._count, name)] if self._kind == "call" else []

    def _say(self, text: str) -> list[Event]:
        if not text:
            return []
        first, self._written = not self._written, True
        if self._kind == "call":
            return [CallArguments(self._count, text)]
        if first and self._before[self._kind]:  # messages are lines
            text = "\n" + text
        self._before[self._kind] = True
        return [Reasoning(text)] if self._kind == "reasoning" else self._answer.feed(text)

    def _end_message(self) -> list[Event]:
        events: list[Event] = []
        if self._kind == "call":
            if not self._written:
                events = [CallArguments(self._count, "{}")]
            self._count += 1
        self._kind, self._written = "answer", False
        return events


def _first(marks: tuple[str, ...], buffer: str) -> tuple[str, str, str]:
    """(text before the first of the marks, the mark, rest); without one, the rest may begin a mark."""
    places = [(at, mark) for mark in marks if (at := buffer.find(mark)) >= 0]
    if places:
        at, mark = min(places)
        return buffer[:at], mark, buffer[at + len(mark) :]
    at = buffer.rfind("<", -max(map(len, marks)) + 1)
    if at >= 0 and any(mark.startswith(buffer[at:]) for mark in marks):
        return buffer[:at], "", buffer[at:]
    return buffer, "", ""
