"""Which crates of Rust are in a wheel: those that were compiled, and those that its machine code names."""

from __future__ import annotations

import contextlib
import io
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elftools.common.exceptions import ELFError

from armbuild.artifact import archives, elffile, toml_file
from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

LOCK = "Cargo.lock"
LARGEST = 16 << 20
"""Bytes of a Cargo.lock that is read; that of a project with 1000 crates has 0.3 MB."""
SECTION = ".dep-v0"
"""Where cargo-auditable writes a program's crates: JSON, compressed by zlib (its PARSING.md)."""
REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


@dataclass(frozen=True, kw_only=True, order=True)
class Crate:
    """One package of Cargo's."""

    name: str
    version: str
    linked: bool
    """It was compiled for the target; else only for what runs while building."""
    source: str = ""
    """Where the lock file says that it comes from; empty for the project's own."""
    sha256: str = ""
    """Its checksum in the lock file."""


def read(sources: Path, record: Path) -> tuple[Crate, ...]:
    """Return the crates in ``record`` (lines "target NAME VERSION" or "host ..."), by name and version.

    The lock files in ``sources`` tell where each comes from. What they do not name is of an older build.
    """
    compiled: dict[tuple[str, str], bool] = {}
    text = record.read_text(encoding="utf-8", errors="replace") if _is_ordinary(record) else ""
    for line in text.splitlines():
        kind, name, version = [*line.split(" "), "", ""][:3]
        if name and version:
            compiled[name, version] = compiled.get((name, version), False) or kind == "target"
    locked = {(package["name"], package["version"]): package for package in _locked(sources)}
    return tuple(
        Crate(
            name=name,
            version=version,
            linked=linked,
            source=str(locked.get((name, version), {}).get("source", "")),
            sha256=str(locked.get((name, version), {}).get("checksum", "")),
        )
        for (name, version), linked in sorted(compiled.items())
        if (name, version) in locked or not locked
    )


def with_embedded(known: Iterable[Crate], wheel: Path) -> tuple[Crate, ...]:
    """Return ``known`` crates and those that cargo-auditable wrote into the machine code of a wheel.

    These are all that is known where a build was not watched, and of libraries that were there before.
    Raises CheckFailed for a list that cannot be read.
    """
    found = {(crate.name, crate.version): crate for crate in known}
    with archives.open_zip(wheel) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                head = file.read(4)
                if head != b"\x7fELF":
                    continue
                content = head + file.read()
            try:
                for crate in _embedded(content):
                    found.setdefault((crate.name, crate.version), crate)
            except (ELFError, *archives.BROKEN) as error:
                raise CheckFailed(f"{member}: the crates in its {SECTION} cannot be read: {error}") from error
    return tuple(sorted(found.values()))


def _embedded(content: bytes) -> Iterator[Crate]:
    for header in elffile.section_headers(elffile.opened(io.BytesIO(content))):
        if header.name != SECTION:
            continue
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(content[header.offset : header.offset + header.size], LARGEST)
        if not unpacking.eof:
            raise ValueError("it is cut off or too large")
        for package in json.loads(text)["packages"]:
            yield Crate(
                name=str(package["name"]),
                version=str(package["version"]),
                linked=package.get("kind", "runtime") == "runtime",
                source=REGISTRY if package["source"] == "crates.io" else "",
            )


def _locked(sources: Path) -> Iterator[dict[str, Any]]:
    """Yield the packages of all lock files, those of the project's own last, which count."""
    paths = sorted(sources.rglob(LOCK), key=lambda path: (-len(path.parts), path))
    for path in paths:
        if not _is_ordinary(path):
            continue
        with contextlib.suppress(ValueError):  # of a vendored crate's tests, say: cargo reads its own
            packages = toml_file.read(path, LARGEST).get("package", [])
            for package in packages if isinstance(packages, list) else ():
                if isinstance(package, dict) and all(
                    isinstance(package.get(key), str) for key in ("name", "version")
                ):
                    yield package


def _is_ordinary(path: Path) -> bool:
    """Return whether a file that a build may have left is one, and not too large."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size <= LARGEST
