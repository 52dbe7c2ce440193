"""Image layers: a folder becomes a gzip-compressed tar, the same bytes for the same files every time.

Formats: OCI image specification, layer.md; RFC 1952 (gzip); the dictionary trick of pigz for several cores.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import tarfile
import zlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from armbuild.errors import MissingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAIN = "application/vnd.oci.image.layer.v1.tar"
MEDIA_TYPE = f"{PLAIN}+gzip"
MEDIA_TYPES = {b"\x1f\x8b": MEDIA_TYPE, b"\x28\xb5\x2f\xfd": f"{PLAIN}+zstd"}
"""What a layer's file is, by its first bytes: RFC 1952, RFC 8878; any other is a plain tar."""
TIME = 315532800
"""What every file is dated (1980, as zip's epoch): a layer changes with its content only."""
CHUNK = 4 << 20
WINDOW = 32 << 10
LEVEL = 4
"""Half of what level 6 costs, for 4 % more bytes."""
MAX_WORKERS = 8
"""Threads of one layer: three chunks wait for each, and three layers may be written side by side."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer of an image, in a file."""

    blob: Path
    media_type: str
    digest: str
    """Of the file, ``sha256:...``."""
    diff_id: str
    """Of the tar inside."""
    size: int
    """Of the file, in bytes."""
    unpacked: int
    """Of the tar inside, in bytes."""
    comment: str
    """What it holds, for the image's history."""

    def descriptor(self) -> dict[str, Any]:
        """Return its entry in an image manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def media_type(head: bytes) -> str:
    """Return the media type of a layer whose file begins with ``head``."""
    return next((kind for magic, kind in MEDIA_TYPES.items() if head.startswith(magic)), PLAIN)


def write(
    tree: Path, blob: Path, *, comment: str, owners: Mapping[str, int] | None = None, compress: bool = True
) -> Layer:
    """Write the files below ``tree``, which stands for the image's root, as a layer into ``blob``.

    Everything belongs to root but the paths in ``owners`` (path -> user and group id); times are fixed, and
    of the modes only the executable and the sticky bit count. Raises MissingError when the disk is full.
    """
    if shutil.disk_usage(blob.parent).free < 1 << 20:
        raise MissingError(f"no space left on the device for {blob}")
    with blob.open("wb") as sink:
        packed = _Gzip(sink) if compress else _Plain(sink)
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            for path in _walk(tree):
                _add(tar, path, path.relative_to(tree).as_posix(), owners or {})
        packed.close()
    return Layer(
        blob=blob,
        media_type=MEDIA_TYPE if compress else PLAIN,
        digest=f"sha256:{packed.digest.hexdigest()}",
        diff_id=f"sha256:{packed.content.hexdigest()}",
        size=blob.stat().st_size,
        unpacked=packed.length,
        comment=comment,
    )


def _walk(tree: Path) -> list[Path]:
    """Return all paths below ``tree``, folders before what is in them, in the same order everywhere."""
    found = []
    for parent, folders, files in os.walk(tree):
        found += [os.path.join(parent, name) for name in (*folders, *files)]  # noqa: PTH118 - os.walk speaks in strings
    return [tree / name for name in sorted(os.path.relpath(path, tree) for path in found)]


def _add(tar: tarfile.TarFile, path: Path, name: str, owners: Mapping[str, int]) -> None:
    entry = tarfile.TarInfo(name)
    entry.mtime = TIME
    entry.uid = entry.gid = owners.get(name, 0)
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, os.readlink(path), 0o777  # noqa: PTH115
        tar.addfile(entry)
    elif stat.S_ISDIR(mode):
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if mode & stat.S_ISVTX else 0o755
        tar.addfile(entry)
    elif stat.S_ISREG(mode):
        entry.size, entry.mode = path.stat().st_size, 0o755 if mode & 0o111 else 0o644
        with path.open("rb") as content:
            tar.addfile(entry, content)


class _Plain:
    """What tarfile writes to: the tar as it is, hashed on the way."""

    def __init__(self, sink: BinaryIO) -> None:
        self.content, self.length = hashlib.sha256(), 0
        self._sink = sink

    @property
    def digest(self) -> Any:
        return self.content

    def write(self, data: bytes) -> int:
        self.content.update(data)
        self.length += len(data)
        return self._sink.write(data)

    def tell(self) -> int:
        return self.length

    def close(self) -> None:
        pass


class _Gzip:
    """What tarfile writes to: one gzip member, its blocks compressed side by side.

    Blocks are cut at fixed places and each starts with the 32 KiB before it as its dictionary, so that the
    bytes do not depend on how many threads there are.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self.digest, self.content, self.length = hashlib.sha256(), hashlib.sha256(), 0
        self._sink = sink
        self._buffer = bytearray()
        self._tail = b""
        self._crc = 0
        self._workers = min(len(os.sched_getaffinity(0)), MAX_WORKERS)
        self._pool = ThreadPoolExecutor(self._workers)
        self._waiting: deque[Future[bytes]] = deque()
        self._emit(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff")  # deflate, no name, no time, no system

    def write(self, data: bytes) -> int:
        self.content.update(data)
        self._crc = zlib.crc32(data, self._crc)
        self.length += len(data)
        self._buffer += data
        while len(self._buffer) > CHUNK:
            self._submit(bytes(self._buffer[:CHUNK]), zlib.Z_SYNC_FLUSH)
            del self._buffer[:CHUNK]
        return len(data)

    def tell(self) -> int:
        return self.length

    def close(self) -> None:
        self._submit(bytes(self._buffer), zlib.Z_FINISH)
        while self._waiting:
            self._emit(self._waiting.popleft().result())
        self._pool.shutdown()
        self._emit(struct.pack("<II", self._crc, self.length & 0xFFFFFFFF))

    def _submit(self, block: bytes, flush: int) -> None:
        self._waiting.append(self._pool.submit(_deflate, block, self._tail, flush))
        self._tail = block[-WINDOW:]
        while len(self._waiting) > 2 * self._workers:
            self._emit(self._waiting.popleft().result())

    def _emit(self, data: bytes) -> None:
        self.digest.update(data)
        self._sink.write(data)


def _deflate(block: bytes, dictionary: bytes, flush: int) -> bytes:
    settings = (LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 8, zlib.Z_DEFAULT_STRATEGY)
    packer = zlib.compressobj(*settings, dictionary) if dictionary else zlib.compressobj(*settings)
    return packer.compress(block) + packer.flush(flush)
