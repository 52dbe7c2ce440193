"""The target's Python.h, for hosts whose own Python came without its development package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild import arm64_root, cache, debian
from armbuild.errors import MissingError

if TYPE_CHECKING:
    from pathlib import Path


def folders(python: str, *, mirror: str | None = None) -> tuple[Path, ...]:
    """Return the include folders of Debian's arm64 ``libpython3.X-dev``, to be searched in this order.

    Raises MissingError, naming the version, where neither the host nor a Debian release has its headers.
    """
    suite = arm64_root.SUITES.get(python)
    if suite is None:
        raise MissingError(
            f"no headers of Python {python}: this machine's python{python} has no Python.h, and no Debian "
            f"release carries it; install python{python}-dev, or `uv python install {python}`"
        )

    def fill(folder: Path) -> None:
        debian.install((f"libpython{python}-dev",), folder, suite=suite, mirror=mirror, dependencies=False)

    include = cache.fill(cache.root() / "headers" / f"{suite}-python{python}", fill) / "usr/include"
    return (include / f"python{python}", include / f"aarch64-linux-gnu/python{python}", include)
