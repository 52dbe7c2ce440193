"""From a path to its files: a wheel, a folder, an OCI archive, or a lone ELF file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armbuild.audit.archive import MAX_FILES, Archive, Member
from armbuild.audit.oci import open_oci
from armbuild.audit.zipped import open_zip
from armbuild.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def open_archive(path: Path) -> Archive:
    """Open ``path``; raises UsageError for what can't be audited, BrokenArchive for a broken container."""
    if (path / "oci-layout").is_file():
        raise UsageError(f"{path}: an OCI layout is read as an archive: tar -C {path} -cf image.tar .")
    if path.is_dir():
        return Archive(path=path, kind="folder", members=_folder(path))
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if not path.is_file():
        raise UsageError(f"{path}: not a regular file")
    with path.open("rb") as file:
        head = file.read(512)
    if path.suffix == ".whl" or head[:4] in (b"PK\3\4", b"PK\5\6"):
        return open_zip(path)
    if head[:4] == b"\x7fELF":
        return Archive(path=path, kind="elf", members=[_lone(path)])
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        return open_oci(path)
    raise UsageError(f"{path}: not a wheel, an ELF file, a folder or an OCI archive")


def _lone(path: Path) -> Member:
    info = path.stat()
    return Member(name=path.name, size=info.st_size, mode=info.st_mode & 0o7777, open=lambda: path.open("rb"))


def _folder(path: Path) -> list[Member]:
    members = []
    for file in sorted(path.rglob("*")):
        if not file.is_symlink() and file.is_file():
            info = file.stat()
            members.append(
                Member(
                    name=file.relative_to(path).as_posix(),
                    size=info.st_size,
                    mode=info.st_mode & 0o7777,
                    open=lambda file=file: file.open("rb"),  # type: ignore[misc]
                )
            )
        if len(members) > MAX_FILES:
            raise UsageError(f"{path}: more than {MAX_FILES} files")
    return members
