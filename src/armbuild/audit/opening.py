"""Open the files of a path: a wheel, a folder, an OCI archive, or one ELF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild.artifact.archives import walk
from armbuild.artifact.limits import MAX_ENTRIES, refuse_holes
from armbuild.audit.archive import ELF, Archive, Kind, Member
from armbuild.audit.oci import open_oci
from armbuild.audit.zipped import open_zip
from armbuild.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def open_archive(path: Path, kind: Kind, image: int = 0) -> Archive:
    """Open ``path``, which is of this ``kind``; ``image`` is the number of one in an archive of several.

    Raises UsageError for what can't be audited, BrokenArchive for a broken container.
    """
    if kind == "oci":
        return open_oci(path, image)
    if kind == "wheel":
        return open_zip(path)
    return Archive(path=path, kind=kind, members=_folder(path) if kind == "folder" else [_lone(path)])


def kind_of(path: Path) -> Kind:
    """Return what there is at ``path``.

    Raises UsageError for what can't be audited, CheckFailed for a file of holes.
    """
    if (path / "oci-layout").is_file():
        return "oci"
    if path.is_dir():
        return "folder"
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if not path.is_file():
        raise UsageError(f"{path}: not a regular file")
    refuse_holes(path)
    with path.open("rb") as file:
        head = file.read(512)
    if path.suffix == ".whl" or head[:4] in (b"PK\3\4", b"PK\5\6"):
        return "wheel"
    if head.startswith(ELF):
        return "elf"
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        return "oci"
    raise UsageError(f"{path}: not a wheel, an ELF file, a folder or an OCI archive")


def _lone(path: Path) -> Member:
    info = path.stat()
    return Member(name=path.name, size=info.st_size, mode=info.st_mode & 0o7777, open=lambda: path.open("rb"))


def _folder(path: Path) -> list[Member]:
    members = []
    for file in walk(path):
        info = file.stat()
        members.append(
            Member(
                name=file.relative_to(path).as_posix(),
                size=info.st_size,
                mode=info.st_mode & 0o7777,
                open=lambda file=file: file.open("rb"),  # type: ignore[misc]
            )
        )
        if len(members) > MAX_ENTRIES:
            raise UsageError(f"{path}: more than {MAX_ENTRIES} files")
    return members
