"""Regular expressions of checkpoints, matched in bounded time.

Python's and Oniguruma's matchers try all ways: with a repeat in a repeat, each character doubles the time.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Any

from armllm.errors import CheckpointError
from armllm.helper_process import HelperProcess, answer_questions

QUICK_REPEATS = 2  # of single characters: at most the square of a name's length
CPU_SECONDS = 1
SECONDS = 20.0  # of all patterns together
MOST_BYTES = 256 << 20

_helper = HelperProcess("armllm.checkpoint.patterns", None)
_spent = 0.0


@functools.lru_cache(maxsize=1 << 16)
def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` begins with a match, as `re.match` has it; CheckpointError if that takes too long."""
    global _spent  # noqa: PLW0603 - what a checkpoint may take, however many patterns it has
    if len(re.findall(r"[*+?{]", pattern)) <= QUICK_REPEATS and not repeats_groups(pattern):
        return re.match(pattern, name) is not None
    started = time.monotonic()
    answer: bool | None = _helper.ask([pattern, name]) if _spent < SECONDS else None
    _spent += time.monotonic() - started
    if answer is None:
        raise CheckpointError(
            f"config.json: the pattern {pattern!r:.200} takes too long to match {name!r:.200}"
        )
    return answer


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
    return True, lambda question: re.match(*question) is not None


if __name__ == "__main__":
    answer_questions(_prepare, cpu_seconds=CPU_SECONDS, most_bytes=MOST_BYTES)
