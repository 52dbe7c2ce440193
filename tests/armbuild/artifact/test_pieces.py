"""Compressed streams are read whole, or refused before they take long."""

import gzip
import io
import time
import zlib

import pytest

from armbuild.artifact.archives import zstd
from armbuild.artifact.pieces import opened

TEXT = b"some text\n" * 60


def read(content, *, is_gzip=True):
    return opened(io.BytesIO(content), is_gzip=is_gzip).read()


@pytest.mark.parametrize(("compress", "is_gzip"), [(gzip.compress, True), (zstd.compress, False)])
def test_pieces_in_a_row_are_one_text(compress, is_gzip):
    """As in indexed layers, which have a piece for each file."""
    assert read(compress(TEXT) * 3000, is_gzip=is_gzip) == TEXT * 3000
    assert read(compress(bytes(5 << 20)), is_gzip=is_gzip) == bytes(5 << 20)
    assert read(compress(b""), is_gzip=is_gzip) == b""


@pytest.mark.parametrize(("compress", "is_gzip"), [(gzip.compress, True), (zstd.compress, False)])
def test_empty_pieces_without_end_are_refused(compress, is_gzip):
    began = time.process_time()
    with pytest.raises(ValueError, match="1001 compressed pieces"):
        read(compress(b"") * 500_000 + compress(TEXT), is_gzip=is_gzip)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(("compress", "is_gzip"), [(gzip.compress, True), (zstd.compress, False)])
def test_what_is_cut_is_an_error(compress, is_gzip):
    with pytest.raises(EOFError, match="cut off"):
        read(compress(TEXT * 9)[:-3], is_gzip=is_gzip)


def test_a_long_name_in_the_header_takes_no_time():
    """Python's gzip reads it byte by byte."""
    header = b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * (32 << 20) + b"\0"
    began = time.process_time()
    assert read(header + gzip.compress(TEXT)[10:]) == TEXT
    assert time.process_time() - began < 1


def test_zeros_behind_the_end_are_refused_at_once():
    """Python's gzip reads them one by one; docker refuses them."""
    began = time.process_time()
    with pytest.raises(zlib.error, match="incorrect header"):
        read(gzip.compress(TEXT) + bytes(32 << 20))
    assert time.process_time() - began < 1
