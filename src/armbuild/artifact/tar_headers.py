"""Headers of a tar archive that two readers take in two ways: an audit would see other files than a runtime.

ustar and extended headers are those of POSIX.1-2017 (pax), long names those of GNU tar. Docker and podman
read images with Go's archive/tar, and this program with Python's tarfile.
"""

from __future__ import annotations

import re
import tarfile
from typing import Any

LIMIT = 64 << 10
"""Bytes of an extended header: tarfile reads it as a whole."""
PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE)
LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_NUMBERS = ((100, 108), (108, 116), (116, 124), (124, 136), (136, 148), (148, 156), (329, 337), (337, 345))
_NUMBER = re.compile(rb"[ \0]*| *[0-7]+(?: *| *\0.*)|[\x80\xff].*", re.DOTALL)
"""Python cuts a number at its first NUL, Go first takes those in front of it away."""
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=]+)=")
_PLACES = (b"path", b"linkpath", b"size")


def check_block(block: bytes) -> None:
    """Raise ReadError for a header whose fields have two meanings."""
    for start, end in _NUMBERS:
        if not _NUMBER.fullmatch(block, start, end):
            raise tarfile.ReadError(f"a header with the number {block[start:end]!r}")
    if block[345] and (block[257:263] != b"ustar\0" or block[508:512] == b"tar\0"):
        raise tarfile.ReadError("a header with a prefix, in a format that has none")
    if block[156:157] == tarfile.AREGTYPE and block[345] and not block[0]:
        raise tarfile.ReadError("a header without a name")


def check_extended(kind: bytes, content: bytes, size: int, before: list[bytes]) -> bytes:
    """Return the name in an extended header, if there is one; ReadError for what has two meanings.

    ``content`` has ``size`` bytes and their padding, ``before`` the kinds that are in front of it.
    """
    if content[size:].strip(b"\0"):
        raise tarfile.ReadError("an extended header with more behind its end")
    own = {*before} - {tarfile.XGLTYPE}
    if kind in before or (own and not {kind, *own} <= set(LONG)):
        raise tarfile.ReadError("an extended header of an extended header")
    if kind in LONG:
        return content[:size].partition(b"\0")[0] if kind == tarfile.GNUTYPE_LONGNAME else b""
    records = _records(content[:size])
    if kind == tarfile.XGLTYPE and any(name in records for name in _PLACES):
        raise tarfile.ReadError("a global header with the place or the size of a file")
    if not re.fullmatch(rb"[0-9]+", records.get(b"size", b"0")):
        raise tarfile.ReadError("an extended header with a size that is no number")
    if any(not value or b"\0" in value for name, value in records.items() if name in _PLACES):
        raise tarfile.ReadError("an extended header with an empty name")
    return records.get(b"path", b"")


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
    """An entry whose headers mean the same to all readers, and whose extended ones are small."""

    slashed: bool | None = None
    """Of a header in the oldest format: whether its name makes it a folder."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Entry:
        """Return the entry of a header; at a damaged one tarfile would end, as if nothing followed."""
        return cls._checked(super().frombuf, buf, encoding, errors)

    @classmethod
    def _frombuf(cls, buf: bytes | bytearray, *settings: Any, **options: Any) -> Entry:
        """Stand for ``frombuf``, which Pythons with the mend of gh-141707 pass over."""
        return cls._checked(super()._frombuf, buf, *settings, **options)  # type: ignore[misc]

    @classmethod
    def _checked(cls, read: Any, buf: bytes | bytearray, *settings: Any, **options: Any) -> Entry:
        if len(buf) == tarfile.BLOCKSIZE and any(buf):
            check_block(bytes(buf))
        try:
            entry: Entry = read(buf, *settings, **options)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error
        if buf[156:157] == tarfile.AREGTYPE:
            entry.slashed = bytes(buf[:100]).partition(b"\0")[0].endswith(b"/")
        return entry

    def _proc_member(self, archive: Any) -> tarfile.TarInfo:
        if self.size < 0:
            raise tarfile.ReadError("an entry with a negative size")
        if self.type in (tarfile.GNUTYPE_SPARSE, tarfile.SOLARIS_XHDTYPE):
            raise tarfile.ReadError("a sparse file, or a header of Solaris")
        if self.type not in (*PAX, *LONG):
            return super()._proc_member(archive)  # type: ignore[misc, no-any-return]
        if self.size > LIMIT:
            raise tarfile.ReadError(f"an extended header of {self.size} bytes")
        before: list[bytes] = archive.__dict__.setdefault("headers_before", [])
        source = archive.fileobj
        content = source.read(self._block(self.size))  # type: ignore[attr-defined]
        if self.type in PAX and b"GNU.sparse." in content:
            raise tarfile.ReadError("a sparse file")
        if self.type in PAX and re.search(rb"[0-9]{100}", content):  # CVE-2024-6232: quadratic in the digits
            raise tarfile.ReadError("an extended header of digits")
        name = check_extended(self.type, content, self.size, before)
        archive.fileobj = _Replayed(archive, source, content)
        before.append(self.type)
        entry: Entry = super()._proc_member(archive)  # type: ignore[misc]
        before.clear()
        if name and entry.slashed is not None and (entry.slashed or name.endswith(b"/")):
            raise tarfile.ReadError("a folder with an extended header in the oldest format")
        return entry


class _Replayed:
    """A tar's stream in front of a block that was read already; gone once that is read again."""

    def __init__(self, archive: Any, source: Any, content: bytes) -> None:
        self._archive, self._source, self._content = archive, source, content

    def read(self, _size: int) -> bytes:
        self._archive.fileobj = self._source
        return self._content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)
