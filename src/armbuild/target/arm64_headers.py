"""The target's Python.h, and where it comes from if the interpreter has none.

An interpreter's own headers serve first, for nothing must be fetched for them: those of uv's Pythons, of
Debian's that were unpacked with their arm64 headers, and of this machine's (no macro of the binary interface
differs between two architectures of Debian). Then comes Debian's arm64 package, then a manylinux image that
is here already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache, containers, process, pythons
from armbuild.target import arm64_root, debian

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.host.pythons import HostPython


@dataclass(frozen=True, kw_only=True)
class Headers:
    """The headers that a build uses."""

    folders: tuple[Path, ...]
    """Folders to be searched last, in this order; empty: the interpreter names its own."""
    source: str
    """Where they are from, for the report."""


def find(python: HostPython, *, mirror: str | None = None) -> Headers:
    """Return the headers for ``python``; raises MissingError, naming the version, where none can be had."""
    if python.include:
        return Headers(folders=(), source=described(python))
    try:
        debians = folders(python.version, mirror=mirror)
    except MissingError:
        if found := _from_image(python.version):
            return found
        raise
    return Headers(folders=debians, source=f"Debian's arm64 libpython{python.version}-dev")


def described(python: HostPython) -> str:
    """Return, without looking, which headers will be used for ``python``."""
    if python.include is None:
        return f"Debian's arm64 libpython{python.version}-dev, else a local manylinux image's"
    place = str(python.include)
    if place.startswith("/opt/python/"):
        owner = "the manylinux image's"
    elif "/pythons/uv-" in place or "/uv/python/" in place:
        owner = "uv's Python"
    elif any(f"/pythons/{suite}-" in place for suite in arm64_root.SUITES.values()):  # in the cache
        owner = "Debian's arm64 package"
    else:
        owner = "this machine's Python"
    return f"{place} ({owner})"


def folders(python: str, *, mirror: str | None = None) -> tuple[Path, ...]:
    """Return the include folders of Debian's arm64 ``libpython3.X-dev``, to be searched in this order.

    Raises MissingError, naming the version, where neither the host nor a Debian release has its headers.
    """
    suite = arm64_root.SUITES.get(python)
    if suite is None:
        raise MissingError(
            f"no headers of Python {python}: this machine's python{python} has no Python.h, and neither a "
            f"Debian release nor a local manylinux image carries it; install python{python}-dev, or "
            f"`uv python install {python}`"
        )

    def fill(folder: Path) -> None:
        debian.install((f"libpython{python}-dev",), folder, suite=suite, mirror=mirror, dependencies=False)

    folder = debian.cache_folder("headers", f"{suite}-python{python}", mirror)
    include = cache.fill(folder, fill) / "usr/include"
    return (include / f"python{python}", include / f"aarch64-linux-gnu/python{python}", include)


def _from_image(python: str) -> Headers | None:
    """Copy the headers out of a manylinux image for AArch64 that an engine has here, without running it."""
    place = f"/opt/python/{pythons.tags(python)}/include/."
    for engine in reversed(containers.installed()):
        listed = process.succeeds([engine, "images", "--format", "{{.Repository}}:{{.Tag}}"]) or ""
        for image in (line for line in listed.splitlines() if "manylinux" in line and "aarch64" in line):
            folder = cache.root() / "headers" / f"{cache.digest(image)}-python{python}"
            create = [engine, "create", "--platform=linux/arm64", "--pull=never", image, "true"]
            container = "" if folder.is_dir() else process.succeeds(create)
            if container is None:
                continue
            copied = _copy(engine, f"{container}:{place}", folder)
            if container:
                process.succeeds([engine, "rm", "--force", container])
            if copied and (folder / f"python{python}/Python.h").is_file():
                return Headers(folders=(folder / f"python{python}",), source=f"{image} {place[:-2]}")
    return None


def _copy(engine: str, source: str, folder: Path) -> bool:
    def fill(empty: Path) -> None:
        if process.succeeds([engine, "cp", source, empty]) is None:
            raise MissingError(source)

    try:
        cache.fill(folder, fill)
    except MissingError:
        return False
    return True
