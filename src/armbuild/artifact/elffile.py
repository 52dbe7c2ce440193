"""Untrusted ELF files, opened so that following their headers ends.

pyelftools reads a name from where a header says it begins to the next zero byte, for each header again.
Thousands of headers that point into one long run of letters would keep it busy for hours. So names of
sections are read here.
"""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_READ = 256 << 20
"""Bytes that may be read for the headers of one file; 200,000 symbols with long names take a third."""
_MAX_NAME = 64 << 10
_EACH = 16
"""What each call costs, in bytes: many small ones take as long as a large one."""


class _Metered:
    """A file that is read up to a limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left = file, MAX_READ

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.take(len(block))
        return block

    def take(self, size: int) -> None:
        self._left -= size + _EACH
        if self._left < 0:
            raise ELFError("its headers take too long to follow")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def opened(file: IO[bytes]) -> ELFFile:
    """Return pyelftools' view of ``file``; reading too much of it raises ELFError."""
    return ELFFile(cast("IO[bytes]", _Metered(file)))


class SectionHeader(NamedTuple):
    """What a section's header says; ``type`` as pyelftools calls it."""

    name: str
    type: str
    flags: int
    address: int
    offset: int
    size: int
    link: int


_FIELDS = {32: "IIIIIII", 64: "IIQQQQI"}
_PLAIN = {0: "SHT_NULL", 1: "SHT_PROGBITS", 8: "SHT_NOBITS"}
"""Of these pyelftools makes nothing. Objects have thousands, for each of which it takes 20 microseconds."""


def section_headers(elf: ELFFile) -> Iterator[SectionHeader]:
    """Yield the headers of all sections; ELFError, or what else pyelftools raises, where they are broken."""
    count = elf.num_sections()
    if not count:
        return
    table = elf.get_section(elf.get_shstrndx())
    elf.stream.seek(table["sh_offset"])
    names = elf.stream.read(table["sh_size"]) + b"\0"
    layout = struct.Struct(("<" if elf.little_endian else ">") + _FIELDS[elf.elfclass])
    for number in range(count):
        place = elf["e_shoff"] + number * elf["e_shentsize"]
        elf.stream.seek(place)
        block = elf.stream.read(layout.size)
        if len(block) < layout.size:
            raise ELFError(f"the header of section {number} at byte {place} is behind the file's end")
        name, kind, *fields = layout.unpack(block)
        known = _PLAIN.get(kind) or str(elf.get_section(number)["sh_type"])
        end = names.find(b"\0", name, name + _MAX_NAME)
        if end < 0:
            raise ELFError(f"the name of section {number} does not end")
        cast("_Metered", elf.stream).take(end - name)
        yield SectionHeader(names[name:end].decode("utf-8", "replace"), known, *fields)
