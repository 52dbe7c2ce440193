"""Archives that Python's tarfile and the one of Go, with which docker and podman read, take in two ways."""

import io
import tarfile

import pytest

from armbuild.artifact import archives

SIZE, DEVMAJOR = slice(124, 136), slice(329, 337)
HIDDEN = b"hidden".ljust(512, b"\0")


def block(name, size=0, kind=tarfile.REGTYPE, form=tarfile.USTAR_FORMAT, **fields):
    """Return a header with the ``fields`` (place, bytes) in it, and a checksum that holds."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.type = size, kind
    header = bytearray(entry.tobuf(form))
    for place, content in fields.values():
        header[place] = content
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def padded(content):
    return content + bytes(-len(content) % 512)


def record(name, value):
    rest = b" " + name + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(str(length)) + len(rest):
        length = len(str(length)) + len(rest)
    return str(length).encode() + rest


def extended(content, kind=tarfile.XHDTYPE):
    return block("extended", len(content), kind) + padded(content)


FIELDS = ("name", "type", "size", "mode", "mtime", "linkname")
FILE = block("usr/lib/x.so", 512) + HIDDEN
PATH = extended(record(b"path", b"a/b"))
LONG = extended(b"a/c\0", tarfile.GNUTYPE_LONGNAME)
OLDEST = block("a", 512, tarfile.AREGTYPE)
COMMENT = extended(record(b"comment", b"0" * 40), tarfile.XGLTYPE)
TWO_MEANINGS = {
    "a global size": extended(record(b"size", b"0"), tarfile.XGLTYPE) + FILE,
    "a global place": extended(record(b"path", b"doc/x"), tarfile.XGLTYPE) + FILE,
    "an empty size": extended(record(b"size", b"")) + FILE,
    "a size that is no number": extended(record(b"size", b"5.0")) + FILE,
    "an empty path": extended(record(b"path", b"")) + FILE,
    "an empty long name": extended(b"\0", tarfile.GNUTYPE_LONGNAME) + FILE,
    "a time that is no number": extended(record(b"mtime", b"1e5")) + FILE,
    "a sparse file": extended(record(b"GNU.sparse.size", b"1")) + FILE,
    "a negative size": block("a", field=(SIZE, b"\xff" * 12)) + FILE,
    "a header that is cut off": FILE[:300],
    "an extended header of nothing": PATH,
    "a path with a NUL": extended(record(b"path", b"a\0b")) + FILE,
    "a damaged record": extended(record(b"path", b"a") + b"99 size=0\n") + FILE,
    "a record without an end": extended(b"8 path=a/b\n") + FILE,
    "a record behind the end": block("x", 9, tarfile.XHDTYPE) + padded(record(b"a", b"1234") * 2) + FILE,
    "a name behind the end": block("x", 1, tarfile.GNUTYPE_LONGNAME) + padded(b"a/b/c") + FILE,
    "a size behind a NUL": block("a", field=(SIZE, b"\x0000000001000")) + HIDDEN,
    "a size with a sign": block("a", field=(SIZE, b"+0000001000\0")) + HIDDEN,
    "a size with a prefix": block("a", field=(SIZE, b"0o000001000\0")) + HIDDEN,
    "a size with an underscore": block("a", field=(SIZE, b"0_000001000\0")) + HIDDEN,
    "a number of another base": block("a", major=(DEVMAJOR, b"\x81" + bytes(7))) + FILE,
    "a damaged header": block("a") + block("b")[:148] + b"000001\0 " + block("b")[156:] + FILE,
    "two extended headers": PATH + PATH + FILE,
    "two long names": LONG + LONG + FILE,
    "both kinds of names": PATH + LONG + FILE,
    "both kinds of names, turned": LONG + PATH + FILE,
    "a global header between": PATH + COMMENT + FILE,
    "two global headers": COMMENT + COMMENT + FILE,  # each costs time, and no limit counts it
    "a header of Solaris": extended(record(b"path", b"a"), tarfile.SOLARIS_XHDTYPE) + FILE,
    "a prefix in GNU's format": block(
        "usr/x", form=tarfile.GNU_FORMAT, prefix=(slice(345, 348), b"doc")
    ),
    "a prefix alone": block("", kind=tarfile.AREGTYPE, prefix=(slice(345, 348), b"doc")),
    "a folder by its second name": extended(record(b"path", b"a/")) + OLDEST + FILE,
    "a folder by its first name": PATH + block("a/", 512, tarfile.AREGTYPE) + FILE,
}  # fmt: skip


@pytest.mark.parametrize("what", TWO_MEANINGS)
@pytest.mark.parametrize("mode", ["r", "r|"])
def test_an_archive_with_two_meanings_is_refused(what, mode):
    first = block("first", 512) + HIDDEN
    content = first + TWO_MEANINGS[what]
    with (
        pytest.raises(tarfile.ReadError),
        archives.open_tar(stream=io.BytesIO(content), mode=mode) as tar,
    ):
        list(tar)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (COMMENT + PATH + FILE + FILE, ["a/b", "usr/lib/x.so"]),
        (COMMENT + LONG + extended(b"t\0", tarfile.GNUTYPE_LONGLINK) + FILE + COMMENT + FILE,
         ["a/c", "usr/lib/x.so"]),
        (LONG + extended(b"target\0", tarfile.GNUTYPE_LONGLINK) + FILE + PATH + FILE, ["a/c", "a/b"]),
        (extended(record(b"size", b"512") + record(b"mtime", b"1.5")) + FILE, ["usr/lib/x.so"]),
        (block("a", field=(SIZE, b"        1000")) + HIDDEN + FILE, ["a", "usr/lib/x.so"]),
        (block("a", field=(SIZE, b"\x80" + bytes(9) + b"\2\0")) + HIDDEN + FILE, ["a", "usr/lib/x.so"]),
        (block("d/", kind=tarfile.AREGTYPE) + FILE, ["d", "usr/lib/x.so"]),
        (block("p/" * 60 + "f") + FILE, ["p/" * 60 + "f", "usr/lib/x.so"]),
    ],
)  # fmt: skip
def test_ordinary_headers_of_all_formats_are_read(content, names):
    with archives.open_tar(stream=io.BytesIO(content + bytes(1024)), mode="r|") as tar:
        assert [entry.name for entry in tar] == names


@pytest.mark.parametrize("mode", ["r", "r|"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_tarfile_writes_is_read_as_by_tarfile(form, mode):
    """Catches a field that is read from another place, or an extended header that is passed over."""
    data = io.BytesIO()
    names = ["a", "é\udcff", "d" * 90 + "/" + "f" * 90, *(["n" * 300] * (form != tarfile.USTAR_FORMAT))]
    kinds = (
        (tarfile.REGTYPE, ""),
        (tarfile.SYMTYPE, "l" * 100),
        (tarfile.LNKTYPE, "a"),
        (tarfile.DIRTYPE, ""),
    )
    with tarfile.open(fileobj=data, mode="w", format=form, errors="surrogateescape") as tar:
        for name in names:
            for kind, target in kinds:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname, entry.mode = kind, target, 0o4755
                entry.size = (100_001 if name == "a" else 5) if kind == tarfile.REGTYPE else 0
                entry.mtime = {tarfile.PAX_FORMAT: 1.5, tarfile.GNU_FORMAT: 2**33}.get(form, 1)
                entry.uid = 10**7 if form != tarfile.USTAR_FORMAT else 1
                tar.addfile(entry, io.BytesIO(b"x" * entry.size if kind == tarfile.REGTYPE else b""))

    def read(opened, content):
        with opened as tar:
            return [
                (*(getattr(entry, field) for field in FIELDS), entry.isreg() and content(tar, entry).read())
                for entry in tar
            ]

    own = read(
        archives.open_tar(stream=io.BytesIO(data.getvalue()), mode=mode), lambda t, entry: entry.content(t)
    )
    assert own == read(tarfile.TarFile(fileobj=io.BytesIO(data.getvalue())), tarfile.TarFile.extractfile)
    assert len(own) == len(kinds) * len(names)


def test_a_file_that_is_cut_off_is_refused():
    with (
        archives.open_tar(stream=io.BytesIO(FILE[:700]), mode="r|") as tar,
        pytest.raises(tarfile.ReadError, match="cut off"),
    ):
        tar.next().content(tar)


def test_checksums_of_signed_bytes_are_read_and_wrong_ones_refused():
    header = bytearray(block("é"))
    total = sum(header) - sum(header[148:156]) + 256
    for number, good in ((total - 512, True), (total, True), (total - 256, False)):
        header[148:156] = b"%06o\0 " % number
        entries = archives.open_tar(stream=io.BytesIO(FILE + header + bytes(1024)), mode="r|")
        if good:
            assert [entry.name for entry in entries] == ["usr/lib/x.so", "é"]
        else:
            with pytest.raises(tarfile.ReadError, match="checksum"):
                list(entries)
