"""Whether an image has a wheel's files, byte for byte."""

from __future__ import annotations

import hashlib
import re
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, canonicalize_version

from armbuild.artifact.wheelfile import parse_name
from armbuild.audit.opening import open_archive
from armbuild.image.packages import UNUSED
from armbuild.image.reference import MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from armbuild.audit.archive import Archive, Member

BLOCK = 1 << 20
SHOWN = 5  # files that differ
# An installer writes these itself, elsewhere, or lists there what it has written.
INSTALLERS = re.compile(r"[^/]+\.(data/|dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)$)")


def is_for(wheel: Path, architecture: str) -> bool:
    """Return whether a wheel can be in an image of this architecture ("arm64"), by its name."""
    machines = parse_name(wheel.name).machines
    return not machines or MACHINES.get(architecture) in machines


def sites(wheel: Path, files: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return where an image has the wheel's project: folders with its version, and its other versions.

    ``files`` are paths in the image; those of METADATA say what is installed.
    """
    named = parse_name(wheel.name)
    folders, others = [], []
    for path in files:
        match = re.fullmatch(r"(|.*/)([^/]+)-([^/-]+)\.dist-info/METADATA", path)
        if match and canonicalize_name(match[2]) == named.name:
            if canonicalize_version(match[3].replace("_", "-")) == canonicalize_version(named.version):
                folders.append(match[1])
            else:
                others.append(match[3])
    return folders, others


def differences(wheel: Path, image: Path, number: int, folder: str) -> tuple[int, list[str]]:
    """Compare a wheel with what an image has of it below ``folder`` ("usr/lib/python3/dist-packages/").

    Returns how many files are the wheel's, and a line for each that is not. Bytecode is not compared.
    ``number`` is that of the image in its archive. BrokenArchive says what can't be read.
    """
    with open_archive(wheel, "wheel") as archive:
        wanted = dict(_digests(member for member in archive.members if not INSTALLERS.match(member.name)))
    parts = {name.partition("/")[0] for name in wanted if "/" in name}
    with open_archive(image, "oci", number) as archive:
        found = dict(_digests(_below(archive, folder, parts, wanted), len(folder)))
    same = sum(found.get(name) == digest for name, digest in wanted.items())
    problems = [
        *(
            f"{folder}{name} is not the wheel's"
            for name in wanted
            if found.get(name, wanted[name]) != wanted[name]
        ),
        *(f"{folder}{name} is missing" for name in wanted.keys() - found if not _may_be_left_out(name)),
        *(f"{folder}{name} is not in the wheel" for name in found.keys() - wanted),
    ]
    more = [f"and {len(problems) - SHOWN} more files"] if len(problems) > SHOWN else []
    return same, [*sorted(problems)[:SHOWN], *more]


def _below(archive: Archive, folder: str, parts: set[str], wanted: Iterable[str]) -> Iterator[Member]:
    """Yield the files of an image that are the wheel's, or lie among them."""
    for member in archive.members:
        name = member.name.removeprefix(folder)
        if not member.name.startswith(folder) or INSTALLERS.match(name) or "/__pycache__/" in f"/{name}":
            continue
        if name in wanted or name.partition("/")[0] in parts:
            yield member


def _digests(members: Iterable[Member], start: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name from ``start`` on, and the SHA-256 of its content."""
    for member in members:
        hashed = hashlib.sha256()
        with member.open() as stream:
            while block := stream.read(BLOCK):
                hashed.update(block)
        yield member.name[start:], hashed.digest()


def _may_be_left_out(name: str) -> bool:
    """Return whether images are built without this file."""
    folders = [str(folder) for folder in PurePosixPath(name).parents]
    patterns = {form for pattern in UNUSED for form in (pattern, pattern.replace("**/", ""))}
    return any(fnmatch(folder, pattern) for folder in folders for pattern in patterns)
