"""The only reader of untrusted archives: no more than `limits` allow, and no path out of a folder.

Zip archives (APPNOTE.TXT, 4.3), tar archives (POSIX.1-2017, pax; GNU tar's long names), and paths below a
root whose links may lead anywhere.
"""

from __future__ import annotations

import contextlib
import errno
import lzma
import os
import shutil
import stat
import struct
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, cast

from armbuild.artifact import tar_headers, zip_records
from armbuild.artifact.limits import MAX_DEPTH, MAX_ENTRIES, Budget, is_bomb
from armbuild.errors import CheckFailed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Iterator

ZstdDecompressor, ZstdError = zstd.ZstdDecompressor, zstd.ZstdError
# What zipfile, tarfile and json raise on hostile input, beyond their own errors.
BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    ZstdError,
    lzma.LZMAError,
    ArithmeticError,
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
OF_THIS_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EMFILE)
"""Numbers of an OSError, which is among BROKEN, that no archive is to blame for."""
TEXT_LIMIT = 4 << 20
"""Bytes of METADATA, WHEEL and other texts of a wheel that are read as a whole."""
_DIRECTORY_LIMIT = 64 << 20
# bzip2 and lzma members unpack in one piece, whatever size they state; indexes take these two methods alone.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MAX_LINKS = 40
_NO_LINK = (errno.EINVAL, errno.ENOENT, errno.ENOTDIR)
_MOST_LINKS = 2000
"""Of an archive of sources, whose targets are looked at step by step."""


def open_zip(path: Path, most: int = MAX_ENTRIES) -> zipfile.ZipFile:
    """Open a zip archive none of whose members unpacks to too much or lies in another.

    Raises CheckFailed for one that is refused, one of BROKEN for one that cannot be read.
    """
    size = path.stat().st_size
    if (directory := zip_records.directory_size(path)) > min(_DIRECTORY_LIMIT, size):
        raise CheckFailed(f"{path.name}: refused: its directory has {directory} bytes")
    archive = zipfile.ZipFile(path)
    if reason := _refusal(archive.infolist(), size):
        archive.close()
        raise CheckFailed(f"{path.name}: refused: {reason}")
    budget = Budget(path, size, most=most)
    for name in archive.namelist():
        budget.take_path(name)
    return archive


def _refusal(entries: list[zipfile.ZipInfo], size: int) -> str:
    total = sum(entry.file_size for entry in entries)
    if is_bomb(len(entries), total, size):
        return f"{len(entries)} files that unpack from {size} to {total} bytes look like a zip bomb"
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            return f"{entry.filename!r} overlaps another file"
        if entry.compress_type not in _METHODS:
            return f"{entry.filename!r} is compressed by method {entry.compress_type}, not stored or deflated"
        end = entry.header_offset + 30 + entry.compress_size  # and its name
    return ""


def read_text(archive: zipfile.ZipFile, name: str, limit: int = TEXT_LIMIT) -> bytes:
    """Return a member of a zip archive; CheckFailed when it has more than ``limit`` bytes.

    KeyError when there is none.
    """
    _check_size(name, archive.getinfo(name).file_size, limit)
    return archive.read(name)


def file_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """Return the text of an unpacked file; CheckFailed when it has more than ``limit`` bytes."""
    _check_size(path.name, path.stat().st_size, limit)
    return path.read_text(encoding="utf-8", errors="replace")


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise CheckFailed(f"{name}: refused: it has more than {limit >> 20} MiB")


def open_tar(
    path: Path | None = None, *, stream: IO[bytes] | None = None, mode: str = "r"
) -> tar_headers.Tar:
    """Open an untrusted tar archive, a file or a ``stream``; its entries raise what is in BROKEN."""
    return tar_headers.Tar.open(path, mode, fileobj=stream)  # type: ignore[call-overload, no-any-return]


def inside(root: Path, path: PurePosixPath, *, strict: bool = False) -> Path:
    """Return the place of ``path`` below ``root``; links are followed as from inside the root.

    Raises CheckFailed for a name that no file can have and for more links than a system follows; with
    ``strict`` for one that leads outside.
    """
    waiting, links = _reversed_parts(os.fspath(path)), 0
    if len(waiting) > MAX_DEPTH:
        raise CheckFailed(f"{str(path)[:200]}: lies in more than {MAX_DEPTH} folders")
    steps = [os.fspath(root)]
    while waiting:
        part = waiting.pop()
        if part == "..":
            if strict and len(steps) == 1:
                raise CheckFailed(f"{path}: a link leads outside")
            steps[1:] = steps[1:-1]
            continue
        steps.append(f"{steps[-1]}/{part}")
        target = _link_target(steps[-1])
        if target is None:
            continue
        links += 1
        if links > MAX_LINKS:
            raise CheckFailed(f"{path}: too many links")
        if strict and target.startswith("/"):
            raise CheckFailed(f"{path}: a link leads outside")
        waiting += _reversed_parts(target)
        steps = steps[:1] if target.startswith("/") else steps[:-1]
    if len(steps) - 1 > MAX_DEPTH:  # links add to what the name has
        raise CheckFailed(f"{str(path)[:200]}: lies in more than {MAX_DEPTH} folders")
    return Path(steps[-1])


def _link_target(place: str) -> str | None:
    """Return where a link leads; None for anything else."""
    try:
        return os.readlink(place)  # noqa: PTH115 - for all parts of all entries: it is quick
    except ValueError as error:  # a NUL, or half of a surrogate pair
        raise CheckFailed(f"{place[:200]!a}: no file can have such a name") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise CheckFailed(f"{place[:200]}...: the name is too long for this system") from error
        if error.errno not in _NO_LINK:
            raise
        return None


def _reversed_parts(path: str) -> list[str]:
    """Return the parts of a path from the last one on; pathlib keeps a first part of two slashes."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def open_file(root: Path, path: PurePosixPath) -> IO[bytes]:
    """Open a regular file below ``root`` to be read; no link leads outside.

    Raises FileNotFoundError for anything else.
    """
    parts = inside(root, path).relative_to(root).parts
    folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            flags = os.O_RDONLY | os.O_NONBLOCK if last else os.O_PATH | os.O_DIRECTORY
            step = os.open(part, flags | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = step
        if not stat.S_ISREG(os.fstat(folder).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", str(path))
    except OSError as error:
        os.close(folder)
        raise FileNotFoundError(errno.ENOENT, error.strerror, str(path)) from error
    return os.fdopen(folder, "rb")


def walk(folder: Path) -> Iterator[Path]:
    """Yield the regular files below ``folder``, by name, without following links; however deep they lie."""
    waiting = [folder]
    while waiting:
        current = waiting.pop()
        with os.scandir(current) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        yield from (current / entry.name for entry in listed if entry.is_file(follow_symlinks=False))
        waiting += [current / entry.name for entry in reversed(listed) if entry.is_dir(follow_symlinks=False)]


def unpack_tar(path: Path, folder: Path, most: int = MAX_ENTRIES) -> None:
    """Lay a source archive's files, folders and links into the empty ``folder``, with their times.

    Nothing is written through a link and none leads outside: `tarfile`'s own filter looks at paths, which
    long ones evade (CVE-2025-4517). Raises CheckFailed for what is refused, such as more than ``most`` files
    and folders, one of BROKEN for what is damaged.
    """
    budget, links = Budget(path, path.stat().st_size, most=most), []
    known: dict[str, Path] = {}
    with open_tar(path) as tar:
        for entry in budget.entries(tar):
            target = _free_place(folder, entry.name, known)
            if entry.isdir():
                target.mkdir(exist_ok=True)
            elif entry.isreg():
                with _new_file(target) as sink:
                    shutil.copyfileobj(cast("IO[bytes]", tar.extractfile(entry)), sink, 1 << 20)
                    sink.flush()
                    os.fchmod(sink.fileno(), entry.mode & 0o755 | 0o600)
                    os.utime(sink.fileno(), (entry.mtime, entry.mtime))
            elif entry.issym():
                target.symlink_to(entry.linkname)
                links.append(target)
            elif entry.islnk():
                os.link(_free_place(folder, entry.linkname, known), target, follow_symlinks=False)
                links += [target] * target.is_symlink()  # which leads elsewhere from here
            else:
                raise CheckFailed(f"{entry.name!r} is a device or a pipe")
        budget.rest(tar.fileobj)  # to the end, where the check sum is compared
    if len(links) > _MOST_LINKS:
        raise CheckFailed(f"{path.name}: refused: it has more than {_MOST_LINKS} links")
    for link in links:
        _check_link(folder, link)


def _new_file(target: Path) -> IO[bytes]:
    """Open a file to be written; of two files with one name the last counts, as for tar."""
    with contextlib.suppress(FileExistsError):
        return target.open("xb")
    if target.is_file() and not target.is_symlink():
        target.unlink()
    return target.open("xb")


def _free_place(folder: Path, name: str, known: dict[str, Path]) -> Path:
    """Return where an entry goes, its folders made; CheckFailed where that is outside or behind a link.

    ``known`` are folders that were met before, by the names in front of their entries': nothing takes their
    place.
    """
    before, _, last = name.rpartition("/")
    if before in known and last not in ("", ".", ".."):
        return known[before] / last
    *folders, last = _inner_parts(name)
    place = folder
    for part in folders:
        place /= part
        if place.is_symlink():
            raise CheckFailed(f"{name!r} is behind a link")
        place.mkdir(exist_ok=True)
    if name.endswith(f"/{last}"):
        known[before] = place
    return place / last


def _inner_parts(name: str) -> list[str]:
    """Return the parts of a path below a folder; CheckFailed for one that leads outside, or too deep."""
    parts = _reversed_parts(name)[::-1]
    if ".." in parts or name.startswith("/") or not parts:
        raise CheckFailed(f"{name!r:.200} is outside of the destination")
    if len(parts) > MAX_DEPTH:
        raise CheckFailed(f"{name!r:.200} lies in more than {MAX_DEPTH} folders")
    return parts


def _check_link(folder: Path, link: Path) -> None:
    """Raise CheckFailed unless ``link`` stays in ``folder``; others on its way are looked at themselves."""
    target = PurePosixPath(os.readlink(link))  # noqa: PTH115 - which Path would normalize
    if len(target.parts) > MAX_DEPTH:
        raise CheckFailed(f"{link.name!r:.200} is a link through more than {MAX_DEPTH} folders")
    place = link.parent
    for index, part in enumerate(target.parts):
        place = place.parent if part == ".." else place / part
        outside = target.is_absolute() or not place.is_relative_to(folder)
        if outside or (place.is_symlink() and index < len(target.parts) - 1):
            raise CheckFailed(f"{link.name!r} is a link that leads outside, or through another link")


def unpack_zip(path: Path, folder: Path, most: int = MAX_ENTRIES) -> None:
    """Lay a source archive's files into the empty ``folder``; raises as ``unpack_tar`` does."""
    with open_zip(path, most) as archive:
        for name in archive.namelist():
            _inner_parts(name)
        archive.extractall(folder)  # noqa: S202 - zipfile makes no links and keeps members inside
