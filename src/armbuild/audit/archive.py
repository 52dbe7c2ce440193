"""What an opened input is, whatever its container: files with a name, a size, and bytes to read once."""

from __future__ import annotations

import errno
import lzma
import struct
import sys
import tarfile
import zipfile
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Literal

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from hashlib import _Hash as Hash

    from typing_extensions import Self

ZstdFile, ZstdError = zstd.ZstdFile, zstd.ZstdError
Kind = Literal["wheel", "elf", "folder", "oci"]

_BLOCK = 1 << 20
MAX_FILES = 200_000
_MAX_TOTAL = 16 << 30
# Deflate reaches 1,032:1 on zeros; real shared objects stay below 20:1, sparse tables below 200:1.
_MAX_RATIO = 200
_RATIO_MATTERS_ABOVE = 256 << 20
# What zipfile, tarfile and json raise on hostile input, beyond their own errors.
BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    ZstdError,
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


def is_bomb(files: int, total: int, size: int) -> bool:
    """Return whether ``files`` of ``total`` bytes in a container of ``size`` bytes are too much."""
    return (
        files > MAX_FILES
        or total > _MAX_TOTAL
        or (total > _RATIO_MATTERS_ABOVE and total > _MAX_RATIO * max(size, 1))
    )


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
    except BROKEN as error:
        if getattr(error, "errno", None) == errno.ENOSPC:
            raise
        archive.problems.append(f"{member.name}: can't be read: {error}".splitlines()[0])
        return None
    return size
