"""What an opened input is, whatever its container: files with a name, a size, and bytes to read once."""

from __future__ import annotations

import errno
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Literal

from armbuild.artifact.archives import BROKEN
from armbuild.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from hashlib import _Hash as Hash

    from typing_extensions import Self

Kind = Literal["wheel", "elf", "folder", "oci"]

ELF = b"\x7fELF"
LIBRARY = b"!<arch>\n"
_BLOCK = 1 << 20


class BrokenArchive(Exception):  # noqa: N818 - becomes an error of the report, is not raised to the user
    """The archive can't be read to its end, or must not be."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file: its name inside the archive, size in bytes, permission bits (0 when the archive has none).

    A member of an image can be opened once, before the next is asked for.
    """

    name: str
    size: int
    mode: int
    open: Callable[[], IO[bytes]]


@dataclass(kw_only=True)
class Archive:
    """An opened input; ``problems`` are what is wrong with the container itself."""

    path: Path
    kind: Kind
    members: Iterable[Member]
    size: int | None = None
    """In bytes; None: as large as the members together."""
    images: int = 0
    """How many images it holds, of which the members are one's; 0 for what is none."""
    problems: list[str] = field(default_factory=list)
    _close: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


def unsafe(name: str) -> bool:
    """Return whether unpacking a file of this name could write outside of its folder, or over another file.

    So could another name of the same place (``./a``, ``b//c``). One that a terminal or a page shows as
    another is refused, too.
    """
    parts = PurePosixPath(name).parts
    return (
        not name
        or str(PurePosixPath(name)) != name.removesuffix("/")
        or one_line(name) != name
        or name.startswith("/")
        or ".." in parts
        or "\\" in name
        or "\0" in name
        or (len(name) > 1 and name[1] == ":")
    )


def copy(archive: Archive, member: Member, target: Path, hashing: Hash | None, *, whole: bool) -> int | None:
    """Write ``member`` to ``target`` if it is ELF, a static library or ``whole``, else leave that empty.

    ``hashing`` gets its content. Returns its true size in bytes; None when it can't be read, which becomes a
    problem of the archive.
    """
    size = 0
    try:
        with member.open() as stream, target.open("wb") as file:
            while block := stream.read(_BLOCK):
                whole |= size == 0 and block.startswith((ELF, LIBRARY))
                size += len(block)
                if hashing:
                    hashing.update(block)
                if whole:
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
