"""A root folder with an AArch64 Python and its libraries, for emulation: Debian packages, no root rights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache
from armbuild.target import debian

if TYPE_CHECKING:
    from pathlib import Path

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie", "3.14": "forky", "3.15": "sid"}
"""The Debian release whose python3 has this version (packages.debian.org)."""
PACKAGES = ("libgomp1", "libstdc++6")

SYSTEM_LIBRARIES = {
    "libGL.so.1": "libgl1",
    "libICE.so.6": "libice6",
    "libSM.so.6": "libsm6",
    "libX11.so.6": "libx11-6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgobject-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
}
"""What a manylinux wheel may expect of its system (PEP 513, PEP 600) and Python itself does not need, and
Debian's packages for it."""


def make(python: str, *, packages: tuple[str, ...] = (), mirror: str | None = None) -> Path:
    """Return a cached root with Python ``python`` ("3.11"), libgomp, libstdc++ and ``packages``.

    Raises MissingError when no Debian release carries that Python or the archive is not available.
    """
    suite = SUITES.get(python)
    if suite is None:
        raise MissingError(
            f"no Debian release carries Python {python} for AArch64 (there are {', '.join(SUITES)})"
        )
    wanted = (f"python{python}", *PACKAGES, *sorted(packages))

    def fill(folder: Path) -> None:
        debian.install(wanted, folder, suite=suite, mirror=mirror)

    return cache.fill(debian.cache_folder("roots", f"{suite}-arm64-{cache.digest(wanted)}", mirror), fill)


def interpreter(root: Path, python: str) -> Path:
    """Return the path of the AArch64 ``python`` inside ``root``."""
    return root / "usr/bin" / f"python{python}"


def cached(mirror: str | None = None) -> Path | None:
    """Return a root of this archive that is already there, the newest release's, or None."""
    pattern = debian.cache_folder("roots", "*-arm64-*", mirror).name
    roots = sorted((cache.root() / "roots").glob(f"{pattern}/usr/lib/aarch64-linux-gnu"))
    return cache.use(roots[-1].parents[2]) if roots else None
