"""Regular expressions of checkpoints, matched in bounded time.

Python's and Oniguruma's matchers try all ways: with a repeat in a repeat, each character doubles the time.
"""

from __future__ import annotations

import functools
import re
import time
import warnings
from typing import Any

from armllm.errors import CheckpointError
from armllm.helper_process import HelperProcess, answer_questions

QUICK_REPEATS = 2  # of single characters: at most the square of a name's length
QUICK = re.compile(r"(?:[\w.*+?^$)|-]|\\.|\((?:\?:|(?!\?)))*")  # no sets: to compile a large one takes long
CPU_SECONDS = 1
SECONDS = 20.0  # of all patterns of a file together
MOST_BYTES = 256 << 20

_helper = HelperProcess("armllm.checkpoint.patterns", None)


class Matcher:
    """Matches the patterns of one file; ``where`` is how errors call it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._spent = 0.0

    def matches(self, pattern: str, name: str, *, whole: bool = False) -> bool:
        """Whether ``name`` begins with a match, or is one as a ``whole``, as `re` has it.

        CheckpointError if the pattern is none, or takes too long.
        """
        if _is_quick(pattern):
            answer = _match(pattern, name, whole)
        else:
            started = time.monotonic()
            answer = _helper.ask([pattern, name, whole]) if self._spent < SECONDS else None
            self._spent += time.monotonic() - started
        if answer is None:
            raise CheckpointError(
                f"{self._where}: the pattern {pattern!r:.200} takes too long to match {name!r:.200}"
            )
        if isinstance(answer, str):
            raise CheckpointError(f"{self._where}: {pattern!r:.200} is no regular expression: {answer:.200}")
        return answer


_of_config = Matcher("config.json")


@functools.lru_cache(maxsize=1 << 16)
def matches(pattern: str, name: str) -> bool:
    """As `Matcher.matches`, for config.json's patterns."""
    return _of_config.matches(pattern, name)


def _is_quick(pattern: str) -> bool:
    """Whether it can be compiled and matched here."""
    repeats = len(re.findall(r"[*+?{]", pattern))
    return repeats <= QUICK_REPEATS and QUICK.fullmatch(pattern) is not None and not repeats_groups(pattern)


def _match(pattern: str, name: str, whole: bool) -> bool | str | None:
    """The answer, or why the pattern is none."""
    try:
        return (re.fullmatch if whole else re.match)(pattern, name) is not None
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)


def repeats_groups(pattern: str) -> bool:
    """Whether a group that has repeats or alternatives within is itself repeated."""
    groups: list[bool] = [False]  # the open ones: do they vary?
    position, closed = 0, False  # of the group that ends here
    for token in re.finditer(
        r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", pattern, re.DOTALL
    ):
        text = token.group()
        if text == "(":
            groups.append(False)
        elif text == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
            position = token.end()
            continue
        elif text in "*+|?" or text.startswith("{"):
            if text not in {"?", "|"} and closed and token.start() == position:
                return True
            # "(?" opens a group of a kind
            groups[-1] = groups[-1] or text != "?" or pattern[token.start() - 1] != "("
    return False


def _prepare(_setup: None) -> tuple[bool, Any]:
    warnings.simplefilter("ignore")  # of sets within sets
    return True, lambda question: _match(*question)


if __name__ == "__main__":
    answer_questions(_prepare, cpu_seconds=CPU_SECONDS, most_bytes=MOST_BYTES)
