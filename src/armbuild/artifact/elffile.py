"""Untrusted ELF files, opened so that following their headers ends.

pyelftools reads a name from where a header says it begins to the next zero byte, for each header again.
Thousands of headers that point into one long run of letters would keep it busy for hours.
"""

from __future__ import annotations

from typing import IO, Any, cast

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

MAX_READ = 256 << 20
"""Bytes that may be read for the headers of one file; 200,000 symbols with long names take a third."""
_EACH = 16
"""What each call costs, in bytes: many small ones take as long as a large one."""


class _Metered:
    """A file that is read up to a limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MAX_READ

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._left -= len(block) + _EACH
        if self._left < 0:
            raise ELFError("its headers take too long to follow")
        return block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def opened(file: IO[bytes]) -> ELFFile:
    """Return pyelftools' view of ``file``; reading too much of it raises ELFError."""
    return ELFFile(cast("IO[bytes]", _Metered(file)))
