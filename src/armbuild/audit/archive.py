"""The files inside a wheel, a folder, an OCI archive or a lone ELF, in bounded time and space."""

from __future__ import annotations

import errno
import gzip
import io
import json
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Literal, cast

from armbuild.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from hashlib import _Hash as Hash

    from typing_extensions import Self

Kind = Literal["wheel", "elf", "folder", "oci"]

_BLOCK = 1 << 20
MAX_FILES = 200_000
MAX_TOTAL = 16 << 30
# Deflate reaches 1,032:1 on zeros; real shared objects stay below 20:1, sparse tables below 200:1.
MAX_RATIO = 200
RATIO_MATTERS_ABOVE = 256 << 20
# What zipfile, tarfile and json raise on hostile input, beyond their own errors.
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    AttributeError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    struct.error,
    TypeError,
    ValueError,
)


class BrokenArchive(Exception):  # noqa: N818 - becomes an error of the report, is not raised to the user
    """The archive can't be read to its end, or must not be."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file: its name inside the archive, size in bytes, permission bits (0 when the archive has none)."""

    name: str
    size: int
    mode: int
    open: Callable[[], IO[bytes]]


@dataclass(kw_only=True)
class Archive:
    """An opened input; ``problems`` are what is wrong with the container itself."""

    path: Path
    kind: Kind
    members: list[Member]
    problems: list[str] = field(default_factory=list)
    _close: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


def open_archive(path: Path) -> Archive:
    """Open ``path``; raises UsageError for what can't be audited, BrokenArchive for a broken container."""
    if path.is_dir():
        return Archive(path=path, kind="folder", members=_folder(path))
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    if not path.is_file():
        raise UsageError(f"{path}: not a regular file")
    with path.open("rb") as file:
        head = file.read(512)
    if path.suffix == ".whl" or head[:4] in (b"PK\3\4", b"PK\5\6"):
        return _zip(path)
    if head[:4] == b"\x7fELF":
        return Archive(path=path, kind="elf", members=[_lone(path)])
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        return _oci(path)
    raise UsageError(f"{path}: not a wheel, an ELF file, a folder or an OCI archive")


def unsafe(name: str) -> bool:
    """Return whether unpacking a file of this name could write outside of its folder."""
    parts = PurePosixPath(name).parts
    return (
        name.startswith("/")
        or ".." in parts
        or "\\" in name
        or "\0" in name
        or (len(name) > 1 and name[1] == ":")
    )


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


def _zip(path: Path) -> Archive:
    try:
        archive = zipfile.ZipFile(path)
    except _BROKEN as error:
        raise BrokenArchive(f"not a readable zip archive ({error}): truncated, or not a wheel") from error
    entries = archive.infolist()
    problems = []
    total = sum(entry.file_size for entry in entries)
    size = max(path.stat().st_size, 1)
    if (
        len(entries) > MAX_FILES
        or total > MAX_TOTAL
        or (total > RATIO_MATTERS_ABOVE and total > MAX_RATIO * size)
    ):
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
    return Archive(path=path, kind="wheel", members=members, problems=problems, _close=stack)


def _opened(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(entry)
    except _BROKEN as error:
        raise BrokenArchive(f"{entry.filename}: {error}") from error


def _oci(path: Path) -> Archive:
    """Open an OCI archive: the files that remain when every layer has been laid over those below it."""
    stack = ExitStack()
    try:
        outer = stack.enter_context(tarfile.open(path))  # noqa: SIM115 - it is one, of the stack
        blobs = {member.name.removeprefix("./"): member for member in outer.getmembers() if member.isfile()}
        files = _unpacked(outer, blobs, stack)
    except BrokenArchive:
        stack.close()
        raise
    except _BROKEN as error:
        stack.close()
        raise BrokenArchive(f"not a readable OCI archive: {error}") from error
    return Archive(path=path, kind="oci", members=[files[name] for name in sorted(files)], _close=stack)


def _unpacked(
    outer: tarfile.TarFile, blobs: dict[str, tarfile.TarInfo], stack: ExitStack
) -> dict[str, Member]:
    files: dict[str, Member] = {}
    total = 0
    for name in _layers(outer, blobs):
        if name not in blobs:
            raise BrokenArchive(f"layer {name} is missing from the archive")
        layer = stack.enter_context(_layer(outer, blobs[name]))
        for member in layer:
            total += member.size
            if total > MAX_TOTAL or len(files) > MAX_FILES:
                raise BrokenArchive("refused: the layers unpack to more than an image plausibly holds")
            _lay(files, layer, member)
    return files


def _layers(outer: tarfile.TarFile, blobs: dict[str, tarfile.TarInfo]) -> list[str]:
    def document(name: str) -> dict[str, list[dict[str, str]]]:
        if name not in blobs:
            raise BrokenArchive(f"{name} is missing: not an OCI archive")
        stream = outer.extractfile(blobs[name])
        loaded = json.loads(stream.read(16 << 20) if stream else b"")
        if not isinstance(loaded, dict):
            raise BrokenArchive(f"{name} is not an object")
        return loaded

    manifest = document("index.json")
    for _ in range(4):  # an index may point to an index
        if "layers" in manifest:
            return ["blobs/" + layer["digest"].replace(":", "/") for layer in manifest["layers"]]
        manifest = document("blobs/" + manifest["manifests"][0]["digest"].replace(":", "/"))
    raise BrokenArchive("index.json leads to no image manifest")


def _layer(outer: tarfile.TarFile, blob: tarfile.TarInfo) -> tarfile.TarFile:
    stream = outer.extractfile(blob)
    if stream is None:
        raise BrokenArchive(f"{blob.name}: not a file")
    magic = stream.read(4)
    stream.seek(0)
    if magic[:2] == b"\x1f\x8b":
        return tarfile.open(fileobj=cast("IO[bytes]", gzip.GzipFile(fileobj=stream)), mode="r:")
    if magic == b"\x28\xb5\x2f\xfd":
        raise BrokenArchive(f"{blob.name}: zstd layers are not supported, save the image with gzip layers")
    return tarfile.open(fileobj=stream, mode="r:")


def _lay(files: dict[str, Member], layer: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./")
    folder, _, base = name.rpartition("/")
    if base == ".wh..wh..opq":  # OCI image specification, layer.md: everything below this folder is hidden
        for other in [other for other in files if other.startswith(folder + "/")]:
            del files[other]
    elif base.startswith(".wh."):
        hidden = f"{folder}/{base[4:]}".lstrip("/")
        for other in [other for other in files if other == hidden or other.startswith(hidden + "/")]:
            del files[other]
    elif member.isfile():
        files[name] = Member(
            name=name,
            size=member.size,
            mode=member.mode & 0o7777,
            open=lambda: layer.extractfile(member) or io.BytesIO(),
        )
    else:
        files.pop(name, None)


def copy(archive: Archive, member: Member, target: Path, hashing: Hash | None) -> int | None:
    """Write ``member`` to ``target`` if it is an ELF file, else leave that empty; hash its content.

    Returns its true size in bytes; None when it can't be read, which becomes a problem of the archive.
    """
    size = 0
    is_elf = False
    try:
        with member.open() as stream, target.open("wb") as file:
            while block := stream.read(_BLOCK):
                is_elf |= size == 0 and block[:4] == b"\x7fELF"
                size += len(block)
                if hashing:
                    hashing.update(block)
                if is_elf:
                    file.write(block)
    except BrokenArchive as error:
        archive.problems.append(str(error))
        return None
    except _BROKEN as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise
        archive.problems.append(f"{member.name}: can't be read: {error}".splitlines()[0])
        return None
    return size
