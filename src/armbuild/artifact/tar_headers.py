"""Headers of a tar archive that two readers take in two ways: an audit would see other files than a runtime.

ustar and extended headers are those of POSIX.1-2017 (pax), long names those of GNU tar. Docker and podman
read images with Go's archive/tar, and this program with Python's tarfile.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
from typing import IO, TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 64 << 10
"""Bytes of an extended header: tarfile reads it as a whole."""
_LONG = {tarfile.GNUTYPE_LONGNAME: b"path", tarfile.GNUTYPE_LONGLINK: b"linkpath"}
_EXTENDED = (*_LONG, tarfile.XHDTYPE, tarfile.XGLTYPE)
_OTHER = (tarfile.GNUTYPE_SPARSE, tarfile.SOLARIS_XHDTYPE)
_SIZE = slice(124, 136)
_LOW = bytes(range(128))
_SMALL = 64 << 10
"""Bytes of a file that is read at once, which is quicker than one of tarfile's streams."""
_NUMBERS = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (148, 156), (329, 337), (337, 345))
_NUMBER = re.compile(rb"[ \0]*| *[0-7]+(?: *| *\0.*)|[\x80\xff].*", re.DOTALL)
"""Python cuts a number at its first NUL, Go first takes those in front of it away."""
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=]+)=")
_VALUES = {b"size": re.compile(rb"[0-9]{1,19}"), b"mtime": re.compile(rb"-?[0-9]{1,19}(\.[0-9]{0,99})?")}
_PLACES = (b"path", b"linkpath", b"size")


def check_block(block: bytes) -> None:
    """Raise ReadError for a header that is damaged, or whose fields have two meanings."""
    if len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("a header that is cut off")
    for start, end in _NUMBERS:
        if not _NUMBER.fullmatch(block, start, end):
            raise tarfile.ReadError(f"a header with the number {block[start:end]!r}")
    if block[345] and (block[257:263] != b"ustar\0" or block[508:512] == b"tar\0"):
        raise tarfile.ReadError("a header with a prefix, in a format that has none")
    if block[156:157] == tarfile.AREGTYPE and block[345] and not block[0]:
        raise tarfile.ReadError("a header without a name")
    summed = block[:148] + block[156:]
    total = 8 * ord(" ") + sum(summed)
    # Some old programs took bytes for signed numbers.
    if _number(block[148:156]) not in (total, total - 256 * len(summed.translate(None, _LOW))):
        raise tarfile.ReadError("a header with another checksum")
    if block[156:157] in _OTHER:
        raise tarfile.ReadError("a sparse file, or a header of Solaris")
    if _number(block[_SIZE]) < 0:
        raise tarfile.ReadError("an entry with a negative size")


def _number(field: bytes) -> int:
    if field[0] in b"\x80\xff":
        return int.from_bytes(field[1:], "big") - ((field[0] == 0xFF) << 8 * (len(field) - 1))
    return int(field.partition(b"\0")[0].strip(b" ") or b"0", 8)


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def check_extended(kind: bytes, content: bytes, size: int, before: list[bytes]) -> dict[bytes, bytes]:
    """Return the records of an extended header; ReadError for what has two meanings.

    ``content`` has ``size`` bytes and their padding, ``before`` the kinds that are in front of it.
    """
    if content[size:].strip(b"\0"):
        raise tarfile.ReadError("an extended header with more behind its end")
    own = {*before} - {tarfile.XGLTYPE}
    if kind in before or (own and not {kind, *own} <= set(_LONG)):
        raise tarfile.ReadError("an extended header of an extended header")
    content = content[:size]
    records = {_LONG[kind]: _text(content)} if kind in _LONG else _records(content)
    if kind == tarfile.XGLTYPE and any(name in records for name in _PLACES):
        raise tarfile.ReadError("a global header with the place or the size of a file")
    if any(name.startswith(b"GNU.sparse.") for name in records):
        raise tarfile.ReadError("a sparse file")
    for name, form in _VALUES.items():
        if not form.fullmatch(records.get(name, b"0")):
            raise tarfile.ReadError(f"an extended header with a {name.decode()} that is no number")
    if any(not value or b"\0" in value for name, value in records.items() if name in _PLACES):
        raise tarfile.ReadError("an extended header with an empty name")
    return records


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header: each has its length, a name and a value."""
    found, place = {}, 0
    while place < len(content):
        match = _RECORD.match(content, place)
        end = place + int(match[1]) if match else 0
        if not match or not match.end() < end <= len(content) or content[end - 1 : end] != b"\n":
            raise tarfile.ReadError("an extended header that is damaged")
        found[match[2]] = content[match.end() : end - 1]
        place = end
    return found


class Entry(tarfile.TarInfo):
    """An entry whose headers mean the same to all readers; owners and devices are left out."""

    __slots__ = ("headers", "text")
    headers: int
    """How many there are, with extended ones."""
    text: int
    """Bytes of the extended ones."""

    @classmethod
    def fromtarfile(cls, archive: Any) -> Entry:
        """Return the next entry; tarfile takes longer, and ends at a damaged one as if nothing followed."""
        source, before = archive.fileobj, list[bytes]()
        records: dict[bytes, bytes] = {}
        start, text = source.tell(), 0
        while (block := _read_header(source, before))[156:157] in _EXTENDED:
            kind, size = block[156:157], _number(block[_SIZE])
            if size > LIMIT:
                raise tarfile.ReadError(f"an extended header of {size} bytes")
            found = check_extended(kind, source.read(_padded(size)), size, before)
            if kind != tarfile.XGLTYPE:  # whose records say nothing of places and sizes
                records.update(found)
            before.append(kind)
            text += size
        entry = cls._of(block, records)
        entry.headers, entry.text = 1 + len(before), text
        entry.offset, entry.offset_data = start, source.tell()
        has_content = entry.isreg() or entry.type not in tarfile.SUPPORTED_TYPES
        archive.offset = entry.offset_data + (_padded(entry.size) if has_content else 0)
        return entry

    def content(self, archive: Any) -> IO[bytes]:
        """Return what a file holds; a small one's can be had once, before the next entry is asked for."""
        if self.size > _SMALL:
            return cast("IO[bytes]", archive.extractfile(self))
        read: bytes = archive.fileobj.read(_padded(self.size))
        if len(read) < self.size:
            raise tarfile.ReadError("a file that is cut off")
        return io.BytesIO(read[: self.size])

    @classmethod
    def _of(cls, block: bytes, records: dict[bytes, bytes]) -> Entry:
        name, kind = _text(block[:100]), block[156:157]
        if kind == tarfile.AREGTYPE:  # a folder, where the name says so
            if b"path" in records and b"/" in (name[-1:], records[b"path"][-1:]):
                raise tarfile.ReadError("a folder with an extended header in the oldest format")
            kind = tarfile.DIRTYPE if name.endswith(b"/") else kind
        if block[345]:
            name = _text(block[345:500]) + b"/" + name
        entry = cls(os.fsdecode(records.get(b"path", name)))
        entry.type, entry.mode = kind, _number(block[100:108])
        entry.linkname = os.fsdecode(records.get(b"linkpath", _text(block[157:257])))
        entry.size = int(records[b"size"]) if b"size" in records else _number(block[_SIZE])
        entry.mtime = float(records[b"mtime"]) if b"mtime" in records else _number(block[136:148])
        if b"path" in records or kind == tarfile.DIRTYPE:
            entry.name = entry.name.rstrip("/")
        return entry


class Tar(tarfile.TarFile):
    """An archive whose entries are forgotten behind the next."""

    tarinfo = Entry

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self.next()) is not None:
            self.members.clear()  # type: ignore[attr-defined]
            yield cast("Entry", entry)


def _read_header(source: Any, before: list[bytes]) -> bytes:
    """Return a header that was checked; at the end of an archive tarfile's own errors say so."""
    block: bytes = source.read(tarfile.BLOCKSIZE)
    if not block.strip(b"\0"):
        if before:
            raise tarfile.ReadError("an extended header of nothing")
        raise tarfile.EOFHeaderError if block else tarfile.EmptyHeaderError  # type: ignore[attr-defined]
    check_block(block)
    return block


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE
