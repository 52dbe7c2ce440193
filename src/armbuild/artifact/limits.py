"""How much an archive of a stranger may hold, before it is unpacked and while it is."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from armbuild.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from armbuild.artifact.tar_headers import Entry

MAX_ENTRIES = 200_000
"""Of a tar, folders, links and extended headers count, too: each takes up to 50 us, whatever is in it."""
MAX_MEMBERS = 100_000
"""Of a wheel: each file takes up to 70 us of an audit."""
FEW_IMAGES = 4
_MAX_TOTAL = 16 << 30
# An image with a model in it holds more than that, but in an archive of nearly that size.
_MAX_RATIO_OF_LARGE = 4
# Deflate reaches 1,032:1 on zeros; real shared objects stay below 20:1, sparse tables below 200:1.
_MAX_RATIO = 200
_RATIO_MATTERS_ABOVE = 256 << 20
MAX_DEPTH = 100
"""Folders in one another: Python walks and removes deeper ones with one call in another, up to a limit."""
_LONGEST_NAME = 4096
"""Characters of a path: no system call takes more bytes (PATH_MAX)."""
_MOST_TEXT = 64 << 20
"""Characters of all names, links and extended headers of a tar."""


def is_bomb(files: int, total: int, size: int) -> bool:
    """Return whether ``files`` of ``total`` bytes in a container of ``size`` bytes are too much."""
    return (
        files > MAX_ENTRIES
        or total > max(_MAX_TOTAL, _MAX_RATIO_OF_LARGE * size)
        or (total > _RATIO_MATTERS_ABOVE and total > _MAX_RATIO * max(size, 1))
    )


def refuse_holes(path: Path) -> None:
    """Raise CheckFailed for a file of holes, which would be read for hours though it takes no space."""
    size = path.stat().st_size
    if size <= _RATIO_MATTERS_ABOVE:
        return
    held = end = 0
    with path.open("rb") as file:
        while end < size and is_bomb(1, size, held):
            try:
                start = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # no data behind the last hole
            end = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            held += end - start
    if is_bomb(1, size, held):
        raise CheckFailed(f"{path}: refused: {size} bytes, of which all but {held} are holes")


@dataclass
class Budget:
    """What may still be unpacked, so that no archive, however small, keeps its reader busy for ever."""

    path: Path
    """Of the archive, for the message."""
    archive_size: int
    images: int = 1
    """Among how many the whole is divided: each may be made of the same layers."""
    most: int = MAX_ENTRIES
    """Files, folders and headers, with folders that paths imply."""
    total: int = 0
    count: int = 0
    text: int = 0
    _folders: set[int] = field(default_factory=set)
    """Hashes of their paths."""

    def entries(self, tar: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries of ``tar``; raises CheckFailed before too much of it was read."""
        for entry in tar:
            self._take_names(entry)
            self.take_path(entry.name, folder=entry.isdir())
            self.total += max(entry.size, 0)
            if self._too_much():
                raise CheckFailed(
                    f"{self.path}: refused: {self.count} entries that unpack from {self.archive_size} bytes"
                    f" to {self.total} or more look like a bomb"
                )
            yield entry

    def take_path(self, path: str, *, folder: bool = False) -> None:
        """Count what is made at ``path`` and the folders above it; raises CheckFailed for too many."""
        path = path.rstrip("/")
        self.count += 1
        if folder:
            self._folders.add(hash(path))
        while (path := path.rpartition("/")[0]) and hash(path) not in self._folders:
            self._folders.add(hash(path))
            self.count += 1
        most = self.most // self.images
        if self.count > most:
            several = f" in one of {self.images} images: save fewer platforms" if self.images > 1 else ""
            raise CheckFailed(
                f"{self.path}: refused: it has more than {most} files, folders and headers{several}"
            )

    def _take_names(self, entry: Entry) -> None:
        names = (entry.name, entry.linkname)
        if max(map(len, names)) > _LONGEST_NAME or entry.name.count("/") > MAX_DEPTH + 2:
            raise CheckFailed(
                f"{self.path}: refused: {entry.name!r:.100} is too long a name, or has too long a link"
            )
        self.count += entry.headers - 1
        self.text += sum(map(len, names)) + entry.text
        if self.text > _MOST_TEXT:
            raise CheckFailed(
                f"{self.path}: refused: its names and headers have more than {_MOST_TEXT >> 20} MiB"
            )

    def rest(self, stream: Any) -> None:
        """Read what follows the end of a tar; raises CheckFailed once it is too much."""
        for _ in self.blocks(stream):
            pass

    def blocks(self, stream: Any) -> Iterator[bytes]:
        """Yield what is left in ``stream``; raises CheckFailed once it is too much."""
        while block := stream.read(1 << 20):
            self.take_bytes(len(block))
            yield block

    def take_bytes(self, size: int) -> None:
        """Count what was read beside the entries of a tar; raises CheckFailed once it is too much."""
        self.total += size
        if self._too_much():
            raise CheckFailed(f"{self.path}: refused: what it unpacks to looks like a bomb")

    def _too_much(self) -> bool:
        return is_bomb(0, self.total * self.images, self.archive_size)
