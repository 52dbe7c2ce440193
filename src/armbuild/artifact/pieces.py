"""Compressed streams of strangers, read in time that what comes out bounds.

gzip (RFC 1952) and zstd (RFC 8878) allow any number of pieces in a row, of which each may be empty.
"""

from __future__ import annotations

import io
import zlib
from typing import IO, TYPE_CHECKING, Any

from armbuild.artifact.archives import ZstdDecompressor

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP = b"\x1f\x8b"
_BLOCK, _MOST_AT_ONCE = 16 << 10, 1 << 20
_FEW, _SMALLEST = 1000, 512
"""An indexed layer (eStargz, zstd:chunked) has a piece for each file, which has a header of 512 bytes."""


class Pieces(io.RawIOBase):
    """What the compressed ``source`` unpacks to.

    Reading raises EOFError where it is cut, ValueError where it has too many pieces, and what zlib and zstd
    raise for a damaged one, or for something else behind the last one.
    """

    def __init__(self, source: IO[bytes], *, is_gzip: bool) -> None:
        self._source, self._is_gzip = source, is_gzip
        self._ready, self._count, self._given = b"", 0, 0
        self._piece: Any = self._new()

    def _new(self) -> Any:
        self._count += 1
        if self._count > _FEW + self._given // _SMALLEST:
            raise ValueError(f"{self._count} compressed pieces of {self._given} bytes")
        return zlib.decompressobj(16 + zlib.MAX_WBITS) if self._is_gzip else ZstdDecompressor()

    def readable(self) -> bool:
        """Return that this stream can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the beginning of ``buffer``; return how many bytes, 0 at the end."""
        if not self._ready:
            self._ready = self._next()
        view = memoryview(buffer).cast("B")
        size = min(len(view), len(self._ready))
        view[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        return size

    def _next(self) -> bytes:
        while True:
            block = getattr(self._piece, "unconsumed_tail", b"")
            if self._piece.eof:
                block = self._piece.unused_data or self._source.read(_BLOCK)
                if not block:
                    return b""
                self._piece = self._new()
            elif not block and getattr(self._piece, "needs_input", True):
                block = self._source.read(_BLOCK)
            found: bytes = self._piece.decompress(block, _MOST_AT_ONCE)
            self._given += len(found)
            if found:
                return found
            if not block and not self._piece.eof:
                raise EOFError("it is cut off")


def opened(source: IO[bytes], *, is_gzip: bool) -> IO[bytes]:
    """Return what ``source``, in the format gzip or else zstd, unpacks to; errors as those of ``Pieces``."""
    return io.BufferedReader(Pieces(source, is_gzip=is_gzip), 1 << 18)
