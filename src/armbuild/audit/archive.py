"""An opened input of any container: files with a name, a size, and bytes to read once."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Literal

from armbuild.artifact.archives import BROKEN, OF_THIS_MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from hashlib import _Hash as Hash
    from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Copied:
    """What was read of a member: its true size in bytes, and its first 8 bytes."""

    size: int
    head: bytes


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


def copy(
    archive: Archive, member: Member, target: Path, hashing: Hash | None, *, whole: bool
) -> Copied | None:
    """Write ``member`` to ``target`` if it is ELF, a wheel's static library or ``whole``; else write nothing.

    ``hashing`` gets its content. Returns None when it can't be read, which becomes a problem of the archive.
    """
    size, head = 0, b""
    file = _create(target) if whole else None
    wanted = (ELF, LIBRARY) if archive.kind == "wheel" else (ELF,)
    try:
        with member.open() as stream:
            while block := stream.read(_BLOCK):
                if not size:
                    head = block[:8]
                    if file is None and head.startswith(wanted):
                        file = _create(target)
                size += len(block)
                if hashing:
                    hashing.update(block)
                if file:
                    file.write(block)
    except BrokenArchive as error:
        archive.problems.append(str(error))
        return None
    except BROKEN as error:
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise
        archive.problems.append(f"{member.name}: can't be read: {error}".splitlines()[0])
        return None
    finally:
        if file:
            file.close()
    return Copied(size=size, head=head)


def _create(target: Path) -> IO[bytes]:
    target.unlink(missing_ok=True)  # ext4 brings a file that is overwritten to the disk at once
    return target.open("wb")
