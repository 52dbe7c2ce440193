"""Wheels: the files of a zip archive, looked through before anything is unpacked."""

from __future__ import annotations

import stat
import zipfile
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from armbuild.artifact.untrusted import BROKEN, is_bomb
from armbuild.audit.archive import Archive, BrokenArchive, Member, unsafe

if TYPE_CHECKING:
    from pathlib import Path


def open_zip(path: Path) -> Archive:
    """Open a zip archive; raises BrokenArchive when it can't be read, or unpacks to too much."""
    try:
        archive = zipfile.ZipFile(path)
    except BROKEN as error:
        raise BrokenArchive(f"not a readable zip archive ({error}): truncated, or not a wheel") from error
    entries = archive.infolist()
    problems = []
    total = sum(entry.file_size for entry in entries)
    size = path.stat().st_size
    if is_bomb(len(entries), total, size):
        archive.close()
        raise BrokenArchive(
            f"refused: {len(entries)} files that unpack from {size} to {total} bytes look like a zip bomb"
        )
    members = []
    seen: set[str] = set()
    for entry in entries:
        mode = entry.external_attr >> 16
        if unsafe(entry.filename):
            problems.append(f"{entry.filename!r}: the name leads out of the folder that it is unpacked to")
        elif entry.flag_bits & 1:
            problems.append(f"{entry.filename}: encrypted")
        elif stat.S_ISLNK(mode):
            problems.append(f"{entry.filename}: a symbolic link, which installers write as a plain file")
        elif entry.filename in seen:
            problems.append(f"{entry.filename}: stands in the archive more than once")
        elif not entry.is_dir():
            members.append(
                Member(
                    name=entry.filename,
                    size=entry.file_size,
                    mode=mode & 0o7777,
                    open=lambda entry=entry: _opened(archive, entry),  # type: ignore[misc]
                )
            )
        seen.add(entry.filename)
    stack = ExitStack()
    stack.callback(archive.close)
    return Archive(path=path, kind="wheel", members=members, size=size, problems=problems, _close=stack)


def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(entry)
    except BROKEN as error:
        raise BrokenArchive(f"{entry.filename}: {error}") from error
