"""The errors of armbuild, one class per exit status.

A message says what is wrong, where, and what to do, in one or two lines.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_LINE = 2000
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Control characters, and those that turn the direction of the text behind them (Unicode TR 36)."""


def one_line(text: str) -> str:
    """Return untrusted ``text`` without what would break a line or a terminal.

    Of a very long text it is the beginning.
    """
    plain = _UNSEEN.sub(" ", text[: MAX_LINE + 1])
    return plain if len(plain) <= MAX_LINE else f"{plain[:MAX_LINE]}..."


class ArmbuildError(Exception):
    """Base of every error a user may see; ``status`` is the process's exit status."""

    status = 1


class CheckFailed(ArmbuildError):  # noqa: N818 - the check's verdict, not a malfunction
    """An audit or a smoke test ran to its end and said no."""

    status = 1


class UsageError(ArmbuildError):
    """The command was called with something it cannot take."""

    status = 2


class MissingError(ArmbuildError):
    """A tool, a package archive or a right that this step needs is not there on this machine."""

    status = 3


class ExcessError(MissingError):
    """A program was ended because it exceeded its limits: it would do so again."""


class BuildError(ArmbuildError):
    """The project's own build, or its repair, failed."""

    status = 4


@contextmanager
def packages_of(extra: str) -> Iterator[None]:
    """Raise MissingError with the way to install them where packages of this extra cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingError(f"{error.name} is not installed: pip install 'armllm[{extra}]'") from error
