"""What the records of a zip archive say, and where they say it twice: readers differ in which they take.

Each file has a header in front of it and an entry in the directory; one or two records at the end lead to the
directory (APPNOTE.TXT, 4.3).
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    import zipfile

_UTF8, _UNICODE_PATH = 0x800, 0x7075
# Bytes behind a file by its flag for a data descriptor, with which its header need not tell the sizes.
_GAPS = {0: (0,), 8: (0, 12, 16, 20, 24)}
_WIDE_RECORDS = 76  # bytes of the two records of zip64


def directory_size(path: Path) -> int:
    """Return the size of a zip archive's central directory, which zipfile reads as a whole; 0 for none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = file.seek(max(0, size - (1 << 16) - 22))
        tail = file.read()
        found = tail.rfind(b"PK\5\6")
        if found < 0 or len(tail) < found + 22:
            return 0
        length: int = struct.unpack_from("<I", tail, found + 12)[0]
        file.seek(max(0, start + found - 20))
        locator = file.read(20)
        if locator[:4] == b"PK\6\7":
            file.seek(max(0, start + found - 76))
            record = file.read(56)
            if record[:4] == b"PK\6\6":
                length = max(length if length != 0xFFFFFFFF else 0, struct.unpack_from("<Q", record, 40)[0])
        return length


def unlisted(archive: zipfile.ZipFile) -> str:
    """Return what a zip archive holds beside the files of its directory, empty for nothing.

    Some installers read archives from the start, where each file has a header of its own: they would see
    other files than those that were audited (CVE-2025-54368).
    """
    source, end, behind = cast("IO[bytes]", archive.fp), 0, 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        source.seek(entry.header_offset)
        header = source.read(30)
        if len(header) < 30 or header[:4] != b"PK\3\4":
            return f"{entry.filename!r:.200} has no header"
        gap = entry.header_offset - end
        if gap not in _GAPS[behind]:
            return f"{abs(gap)} bytes before {entry.filename!r:.200} belong to no file"
        name, extra = (source.read(size) for size in struct.unpack_from("<HH", header, 26))
        if problem := _contradiction(entry, header, name, extra):
            return problem
        behind = header[6] & 8
        end = source.tell() + entry.compress_size
    gap = archive.start_dir - end
    if gap not in _GAPS[behind]:
        return f"{abs(gap)} bytes before the directory belong to no file"
    return _behind(archive, source)


def _behind(archive: zipfile.ZipFile, source: IO[bytes]) -> str:
    """Return what is wrong behind the directory of a zip archive, empty for nothing."""
    size = directory_size(Path(str(archive.filename)))
    tail = source.seek(0, os.SEEK_END) - archive.start_dir - size
    wide = tail - 22 - len(archive.comment)
    if wide not in (0, _WIDE_RECORDS):
        return "something stands behind the end of the directory"
    source.seek(archive.start_dir + size)
    if not _ends_agree(source.read(wide), source.read(22), size, archive):
        return "the records at its end say otherwise where and how large the directory is"
    return ""


def _ends_agree(wide: bytes, plain: bytes, size: int, archive: zipfile.ZipFile) -> bool:
    """Return whether the records of both widths lead to the directory: readers differ in which they take."""
    count = len(archive.infolist())
    truth = (0, 0, count, count, size, archive.start_dir)
    stated = struct.unpack_from("<4H2I", plain, 4)
    if not wide:
        return stated == truth
    limits = (0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    place = struct.unpack_from("<IQI", wide, 60)
    return (
        struct.unpack_from("<2I4Q", wide, 16) == truth
        and place == (0, archive.start_dir + size, 1)
        and all(value in pair for value, *pair in zip(stated, truth, limits, strict=True))
    )


def _contradiction(entry: zipfile.ZipInfo, header: bytes, name: bytes, extra: bytes) -> str:
    """Return how the header in front of a file differs from its entry in the directory, empty for not."""
    shown = f"{entry.filename!r:.200}"
    flags, method = struct.unpack_from("<HH", header, 6)
    sizes = struct.unpack_from("<II", header, 18)
    known = sizes in ((entry.compress_size, entry.file_size), (0xFFFFFFFF, 0xFFFFFFFF))
    if method != entry.compress_type or not (known or (flags & 8 and sizes == (0, 0))):
        return f"the header of {shown} contradicts the directory"
    if name != entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF8 else "cp437"):
        return f"{shown} has another name in its header, {name!r:.200}"
    if _renames(entry.extra) or _renames(extra):
        return f"{shown} has a second name, which some installers use"
    return f"the folder {shown} has content" if entry.is_dir() and entry.compress_size else ""


def _renames(extra: bytes) -> bool:
    """Return whether an entry's extra field has another name for it ("Info-ZIP Unicode Path", 4.6.9)."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        if kind == _UNICODE_PATH:
            return True
        extra = extra[4 + size :]
    return False
