"""What reading archives of strangers takes: what their readers raise, and when to stop before a bomb."""

from __future__ import annotations

import lzma
import struct
import sys
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild.errors import CheckFailed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ZstdFile, ZstdError = zstd.ZstdFile, zstd.ZstdError
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
MAX_FILES = 200_000
# Folders and links count too in a tar: an image has more of them than files, a bomb much more.
_MAX_ENTRIES = 2 * MAX_FILES
_MAX_TOTAL = 16 << 30
# An image with a model in it holds more than that, but in an archive of nearly that size.
_MAX_RATIO_OF_LARGE = 4
# Deflate reaches 1,032:1 on zeros; real shared objects stay below 20:1, sparse tables below 200:1.
_MAX_RATIO = 200
_RATIO_MATTERS_ABOVE = 256 << 20


def is_bomb(files: int, total: int, size: int) -> bool:
    """Return whether ``files`` of ``total`` bytes in a container of ``size`` bytes are too much."""
    return (
        files > MAX_FILES
        or total > max(_MAX_TOTAL, _MAX_RATIO_OF_LARGE * size)
        or (total > _RATIO_MATTERS_ABOVE and total > _MAX_RATIO * max(size, 1))
    )


@dataclass
class Budget:
    """What may still be unpacked, so that no archive, however small, keeps its reader busy for ever."""

    path: Path
    """Of the archive, for the message."""
    archive_size: int
    total: int = 0
    count: int = 0

    def entries(self, tar: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
        """Yield the entries of ``tar``; raises CheckFailed before too much of it was read."""
        for entry in tar:
            self.total += max(entry.size, 0)
            self.count += 1
            if self.count > _MAX_ENTRIES or is_bomb(0, self.total, self.archive_size):
                raise CheckFailed(
                    f"{self.path}: refused: {self.count} entries that unpack from {self.archive_size} bytes"
                    f" to {self.total} or more look like a bomb"
                )
            yield entry
