"""What can go wrong, each with the exit status that a pipeline can rely on.

A message says what is wrong, where, and what to do, in one or two lines.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


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
