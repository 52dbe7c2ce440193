"""The records of a zip archive: what some readers see and others do not."""

import io
import struct
import zipfile
import zlib

import pytest
from tests.armbuild.artifact.test_archives import zipped

from armbuild.artifact import archives, zip_records
from armbuild.errors import CheckFailed


def second_file(content, change):
    """A zip archive whose second file is not in its directory, or not as it says."""
    first, directory = content.rfind(b"PK\3\4"), content.find(b"PK\1\2")
    entry = content.rfind(b"PK\1\2")
    return change(bytearray(content), first, directory, entry)


def put(content, at, form, *values):
    struct.pack_into(form, content, at, *values)
    return content


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content, *_: b"#!/bin/sh\n" + content, "10 bytes before 'a' belong to no file"),
        (lambda content, *_: content + b"more", "something stands behind the end"),
        (
            lambda content, *_: put(content, len(content) - 12, "<H", 1),
            "the records at its end say otherwise",
        ),
        (
            lambda content, *_: put(content, len(content) - 18, "<H", 1),
            "the records at its end say otherwise",
        ),
        (lambda content, first, *_: put(content, first + 18, "<I", 1), "the header of 'b' contradicts"),
        (lambda content, first, *_: put(content, first + 8, "<H", 0), "the header of 'b' contradicts"),
        (lambda content, first, *_: put(content, first, "<I", 0), "'b' has no header"),
        (
            lambda content, first, *_: put(content, first + 30, "c", b"c"),
            "'b' has another name in its header",
        ),
    ],
)
def test_what_some_installers_read_otherwise_is_found(tmp_path, change, reason):
    path = zipped(tmp_path / "a.whl", {"a": b"x", "b": b"y"})
    with archives.open_zip(path) as archive:
        assert zip_records.unlisted(archive) == ""
    path.write_bytes(second_file(path.read_bytes(), change))
    with archives.open_zip(path) as archive:
        assert reason in zip_records.unlisted(archive)


@pytest.mark.parametrize("wrong", [None, 32, 40, 48, 64, 72, 84, 88, 92])
def test_both_records_at_the_end_of_an_archive_lead_to_its_directory(tmp_path, wrong):
    """Some readers take those of zip64 wherever they are, and some only where the others are full."""
    path = zipped(tmp_path / "a.whl", {"a": b"x", "b": b"y"})
    content = path.read_bytes()
    end = content.rfind(b"PK\5\6")
    _, _, _, count, size, start, _ = struct.unpack_from("<4H2IH", content, end + 4)
    wide = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    tail = bytearray(wide + struct.pack("<4sIQI", b"PK\6\7", 0, end, 1) + content[end:])
    if wrong is not None:
        tail[wrong] ^= 1
    path.write_bytes(content[:end] + tail)
    try:
        with archives.open_zip(path) as archive:
            found = zip_records.unlisted(archive)
    except (*archives.BROKEN, CheckFailed):
        found = "not read"
    assert bool(found) == (wrong is not None)


def test_a_second_name_and_a_folder_with_content_are_found(tmp_path):
    """Some installers take the name of an extra field, or lay what a folder's entry holds."""
    path = tmp_path / "a.whl"
    for name, extra, reason in (
        ("a", struct.pack("<HHBI", 0x7075, 6, 1, zlib.crc32(b"a")) + b"b", "'a' has a second name"),
        ("a/", b"", "the folder 'a/' has content"),
    ):
        entry = zipfile.ZipInfo(name)
        entry.extra = extra
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(entry, b"import os")
        with archives.open_zip(path) as archive:
            assert reason in zip_records.unlisted(archive)


def test_a_file_that_the_directory_hides_is_found(tmp_path):
    whole = zipped(tmp_path / "a.whl", {"a": b"x", "b": b"y"})
    with zipfile.ZipFile(whole, "a") as archive:
        archive.filelist.pop()
        archive._didModify = True
    with archives.open_zip(whole) as archive:
        assert zip_records.unlisted(archive).endswith("bytes before the directory belong to no file")


def test_zip_archives_that_were_streamed_hold_what_they_list(tmp_path):
    class Pipe(io.RawIOBase):
        def writable(self):
            return True

        def write(self, block):
            written.extend(block)
            return len(block)

    written = bytearray()
    with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"x" * 100)
        archive.writestr("b", b"y")
    (tmp_path / "a.whl").write_bytes(written)
    with archives.open_zip(tmp_path / "a.whl") as archive:
        assert zip_records.unlisted(archive) == ""
