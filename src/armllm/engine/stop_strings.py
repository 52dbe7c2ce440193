"""Many stop strings at once, in a text that grows: Aho and Corasick's automaton (1975)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

START = 0


class StopStrings:
    """Finds the string that is completed first; of several that end together, the longest.

    A state stands for the longest end of a text that begins one of the strings. Each character costs the same
    on average, however many strings there are and however long they are. Made once per request.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._longest: list[str | None] = [None]  # of the strings that end in a state
        for string in strings:
            self._add(string)
        self._fallback = self._fallbacks()

    def advance(self, state: int, text: Iterable[str]) -> tuple[int, tuple[int, str] | None]:
        """The state after more text, or where a string is complete, and (how many characters, the string)."""
        for count, character in enumerate(text, start=1):
            while state != START and character not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(character, START)
            found = self._longest[state]
            if found is not None:
                return state, (count, found)
        return state, None

    def num_begun(self, state: int) -> int:
        """Characters at the end of the text that may turn out to begin a string."""
        while state != START and not self._next[state]:  # all of a string, which was passed over
            state = self._fallback[state]
        return self._depth[state]

    def skip(self, state: int, text: str) -> int:
        """The state after more text in which complete strings do not count."""
        rest = text
        while rest:
            state, found = self.advance(state, rest)
            if found is None:
                break
            rest = rest[found[0] :]
        return state

    def _add(self, string: str) -> None:
        state = START
        for character in string:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append(None)
            state = following
        self._longest[state] = string

    def _fallbacks(self) -> list[int]:
        """Of each state that of its longest proper end, by breadth: shorter ones are known before."""
        fallback = [START] * len(self._next)
        pending = deque(self._next[START].values())
        while pending:
            state = pending.popleft()
            for character, following in self._next[state].items():
                back = fallback[state]
                while back != START and character not in self._next[back]:
                    back = fallback[back]
                fallback[following] = self._next[back].get(character, START)
                pending.append(following)
            if self._longest[state] is None:
                self._longest[state] = self._longest[fallback[state]]
        return fallback
