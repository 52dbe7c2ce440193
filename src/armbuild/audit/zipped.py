"""Wheels: the files of a zip archive, looked through before anything is unpacked."""

from __future__ import annotations

import stat
from contextlib import ExitStack
from typing import IO, TYPE_CHECKING

from armbuild.artifact import archives, zip_records
from armbuild.artifact.limits import MAX_MEMBERS
from armbuild.audit.archive import Archive, BrokenArchive, Member
from armbuild.audit.names import Places, refusal
from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    import zipfile
    from pathlib import Path


def open_zip(path: Path) -> Archive:
    """Open a zip archive; raises BrokenArchive when it can't be read, or unpacks to too much."""
    try:
        archive = archives.open_zip(path, MAX_MEMBERS)
    except CheckFailed as error:
        raise BrokenArchive(str(error)) from error
    except archives.BROKEN as error:
        raise BrokenArchive(f"not a readable zip archive ({error}): truncated, or not a wheel") from error
    hidden = zip_records.unlisted(archive)
    problems = [f"not as installers read it: {hidden}"] if hidden else []
    members = []
    places = Places()
    seen: set[str] = set()
    for entry in archive.infolist():
        mode = entry.external_attr >> 16
        if reason := refusal(entry.orig_filename):
            problems.append(f"{entry.orig_filename!r:.200}: {reason}")
        elif entry.flag_bits & 1:
            problems.append(f"{entry.filename}: encrypted")
        elif stat.S_ISLNK(mode):
            problems.append(f"{entry.filename}: a symbolic link, which installers write as a plain file")
        elif entry.filename in seen:
            problems.append(f"{entry.filename}: stands in the archive more than once")
        elif not entry.is_dir():
            if other := places.clash(entry.filename):
                problems.append(
                    f"{entry.filename}: macOS, Windows or a volume that ignores case writes it over {other}"
                )
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
    return Archive(
        path=path, kind="wheel", members=members, size=path.stat().st_size, problems=problems, _close=stack
    )


def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(entry)
    except archives.BROKEN as error:
        raise BrokenArchive(f"{entry.filename}: {error}") from error
