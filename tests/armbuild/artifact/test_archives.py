"""What archives of strangers may hold, and that reading them stays within time, memory and their folder."""

import gzip
import io
import os
import resource
import struct
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from armbuild.artifact import archives, limits
from armbuild.errors import CheckFailed


def tar(path, *entries, compress="gz"):
    """Write entries: (name, content, changes)."""
    with tarfile.open(path, f"w:{compress}") as file:
        for name, content, changes in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for key, value in changes.items():
                setattr(entry, key, value)
            file.addfile(entry, io.BytesIO(content))
    return path


def link(target, kind=tarfile.SYMTYPE):
    return {"type": kind, "linkname": target}


def raw_header(kind, size, name=b"x"):
    """A tar header that announces ``size`` bytes, as tarfile would never write it."""
    entry = tarfile.TarInfo(name.decode())
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.fixture
def peak():
    """The process may not get 256 MiB larger."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK]
)
@pytest.mark.usefixtures("peak")
def test_an_extended_header_of_gigabytes_is_refused_before_it_is_read(tmp_path, kind):
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(raw_header(kind, 3 << 29))
        file.truncate(512 + (3 << 29))  # a hole: it takes no place
    with pytest.raises(tarfile.ReadError, match="an extended header of 1610612736 bytes"):
        archives.unpack_tar(path, tmp_path)


def test_an_extended_header_of_digits_is_refused(tmp_path):
    """A search in it would take tarfile hours on Pythons with CVE-2024-6232."""
    content = b"1" * (60 << 10)
    path = tmp_path / "a.tar"
    path.write_bytes(raw_header(tarfile.XHDTYPE, len(content)) + content + bytes(2048))
    with pytest.raises(tarfile.ReadError, match="damaged"):
        archives.unpack_tar(path, tmp_path)


def test_ordinary_extended_headers_are_read(tmp_path):
    name = "folder/" + "n" * 200 + "/é"
    (out := tmp_path / "out").mkdir()
    for shape in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(tmp_path / "a.tar", "w", format=shape) as file:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = 4, 1600000000.5, 0o777
            file.addfile(entry, io.BytesIO(b"text"))
        (inner := out / str(shape)).mkdir()
        archives.unpack_tar(tmp_path / "a.tar", inner)
        assert (inner / name).read_bytes() == b"text"
        assert int((inner / name).stat().st_mtime) == 1600000000
        assert (inner / name).stat().st_mode & 0o7777 == 0o755
    with (tmp_path / "a.tar").open("rb") as file, archives.open_tar(stream=file, mode="r|") as stream:
        assert [entry.name for entry in stream] == [name]


@pytest.mark.parametrize("changes", [{"pax_headers": {"comment": "c" * 60_000}}, {"linkname": "d" * 3000}])
def test_names_and_headers_of_gigabytes_are_refused_before_they_are_kept(tmp_path, monkeypatch, changes):
    """A reader keeps them all, and a file of a megabyte can hold a gigabyte of equal ones."""
    monkeypatch.setattr(limits, "_MOST_TEXT", 1 << 20)
    path = tar(tmp_path / "a.tar.gz", *((f"f{i}", b"", changes) for i in range(400)))
    (out := tmp_path / "out").mkdir()
    with pytest.raises(CheckFailed, match="its names and headers have more than 1 MiB"):
        archives.unpack_tar(path, out)


@pytest.mark.parametrize(
    "changes", [{"name": "n" * 5000}, {"name": "n/" * 104}, {"linkname": "a/../" * 1000}]
)
def test_a_name_that_no_system_takes_is_refused(tmp_path, changes):
    """To follow 60 KB of folders takes seconds for each entry."""
    path = tar(tmp_path / "a.tar.gz", ("a", b"", {"type": tarfile.SYMTYPE, **changes}))
    with pytest.raises(CheckFailed, match="too long a name, or has too long a link"):
        archives.unpack_tar(path, tmp_path)


def test_links_that_take_long_to_follow_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MOST_LINKS", 2)
    for number, entries in enumerate(
        ([("a", b"", link("b/../" * 60))], [(str(i), b"", link("b")) for i in range(3)])
    ):
        (out := tmp_path / f"out{number}").mkdir()
        path = tar(tmp_path / "a.tar.gz", *entries)
        with pytest.raises(CheckFailed, match=r"through more than 100 folders|it has more than 2 links"):
            archives.unpack_tar(path, out)


def test_a_file_that_was_unpacked_is_read_up_to_its_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"\xff" * 1024)
    assert archives.file_text(tmp_path / "a", 1024) == "\ufffd" * 1024
    with pytest.raises(CheckFailed, match="a: refused: it has more than 0 MiB"):
        archives.file_text(tmp_path / "a", 1023)


def test_links_of_a_source_archive_are_kept_where_they_stay_inside(tmp_path):
    path = tar(
        tmp_path / "a.tar.gz",
        ("p/a/file", b"text", {}),
        ("p/to-file", b"", link("a/file")),
        ("p/a/up", b"", link("../to-file")),
        ("p/same", b"", link("p/a/file", tarfile.LNKTYPE)),
    )
    (out := tmp_path / "out").mkdir()
    archives.unpack_tar(path, out)
    assert {(out / "p" / name).read_text() for name in ("to-file", "a/up", "same")} == {"text"}


LONG = "d" * 240
DEEP = [(f"{'/'.join([LONG] * n)}", b"", {"type": tarfile.DIRTYPE}) for n in range(1, 17)]
# short names for deep folders: their real path is longer than PATH_MAX, which a realpath gives up at
SHORT = [(f"{chr(96 + n)}", b"", link(f"{chr(95 + n) if n > 1 else '.'}/{LONG}")) for n in range(1, 17)]


@pytest.mark.parametrize(
    "entries",
    [
        [("../escaped", b"x", {})],
        [("/escaped", b"x", {})],
        [("a/../../escaped", b"x", {})],
        [("a", b"", link("..")), ("a/escaped", b"x", {})],
        [("a", b"", link(".")), ("a/b", b"", link("..")), ("b/escaped", b"x", {})],
        [("a", b"", link("/etc"))],
        [("a", b"", link("//etc"))],
        [("a/b/c/up", b"", link("../../..")), ("out", b"", link("a/b/c/up/.."))],
        [("a", b"", link("../escaped", tarfile.LNKTYPE))],
        [("a", b"", link("/etc/passwd", tarfile.LNKTYPE))],
        [("a", b"", link("//etc/passwd", tarfile.LNKTYPE))],
        [("a", b"", link("/etc/passwd")), ("b", b"", link("a", tarfile.LNKTYPE))],
        [("a/b/c/in", b"", link("../../../file")), ("out", b"", link("a/b/c/in", tarfile.LNKTYPE))],
        [("a", b"", link("../target")), ("a", b"x", {})],
        [("a", b"", {"type": tarfile.CHRTYPE})],
        [("a", b"", {"type": tarfile.FIFOTYPE})],
        [*DEEP, *SHORT, ("out", b"", link("p/" + "../" * 17)), ("out/escaped", b"x", {})],
        [("a", b"x", {"mtime": 1e300})],
        [("a/" * 101 + "b", b"x", {})],
    ],
)  # fmt: skip
def test_no_source_archive_writes_outside(tmp_path, entries):
    (out := tmp_path / "in/out").mkdir(parents=True)
    path = tar(tmp_path / "a.tar.gz", *entries)
    with pytest.raises((CheckFailed, *archives.BROKEN)):
        archives.unpack_tar(path, out)
    assert not list(tmp_path.rglob("escaped"))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.tar.gz", "in"]
    assert [item.name for item in (tmp_path / "in").iterdir()] == ["out"]


@pytest.mark.parametrize("slashes", ["/", "//", "///", "/./", "//./"])
def test_no_number_of_slashes_is_a_place_of_this_machine(tmp_path, slashes):
    """pathlib keeps two of them in front, as a part of its own that takes the place of all before it."""
    (out := tmp_path / "out").mkdir()
    (root := tmp_path / "root").mkdir()
    place = f"{slashes}{str(tmp_path)[1:]}"
    with pytest.raises(CheckFailed, match="outside of the destination"):
        archives.unpack_tar(tar(tmp_path / "a.tar.gz", (f"{place}/escaped", b"x", {})), out)
    assert not list(tmp_path.rglob("escaped"))
    (root / "link").symlink_to(place)
    below = root / str(tmp_path)[1:] / "x"
    assert archives.inside(root, PurePosixPath("link/x")) == below
    assert archives.inside(root, PurePosixPath(f"{place}/x")) == below


def test_the_last_of_two_files_with_one_name_counts(tmp_path):
    (out := tmp_path / "out").mkdir()
    path = tar(tmp_path / "a.tar.gz", ("a", b"first, and longer", {}), ("a", b"last", {}))
    archives.unpack_tar(path, out)
    assert (out / "a").read_bytes() == b"last"


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_folders_that_paths_imply_count(tmp_path, form):
    """Else each of 60,000 short members makes a hundred of them."""
    (out := tmp_path / "out").mkdir()
    names = [f"{number}/" + "d/" * 98 + "f" for number in range(3)]
    if form == "tar":
        path = tar(tmp_path / "a.tar.gz", *((name, b"", {}) for name in names))
    else:
        path = zipped(tmp_path / "a.zip", dict.fromkeys(names, b""))
    unpack = {"tar": archives.unpack_tar, "zip": archives.unpack_zip}[form]
    most = 303 if form == "tar" else 300  # each of three long names has a header
    with pytest.raises(CheckFailed, match=f"refused: it has more than {most - 1} files, folders"):
        unpack(path, out, most - 1)
    assert len(list(out.rglob("*"))) < 300  # what is refused was not made
    (again := tmp_path / "again").mkdir()
    unpack(path, again, most)
    assert len(list(again.rglob("*"))) == 300


def test_a_tar_of_sources_may_have_as_many_entries_as_any_other():
    """`--source` takes compilers and libraries, which are larger than sdists."""
    assert archives.unpack_tar.__defaults__ == (limits.MAX_ENTRIES,)


def zipped(path, members, **options):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_a_zip_bomb_is_refused_before_it_is_read(tmp_path):
    path = zipped(tmp_path / "a.whl", {"x.dist-info/METADATA": bytes(300 << 20)})
    with pytest.raises(CheckFailed, match="look like a zip bomb"):
        archives.open_zip(path)


def test_folders_that_names_imply_count(tmp_path):
    """2800 files in 250,000 folders: the audit keeps each folder."""
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        for number in range(2800):
            archive.writestr(f"{number}/{'a/' * 89}f", b"")
    with pytest.raises(CheckFailed, match="more than 200000 files, folders"):
        archives.open_zip(tmp_path / "x.whl")


def test_files_that_overlap_are_refused(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a": os.urandom(1000), "b": os.urandom(1000)})
    content = path.read_bytes()
    second = content.rfind(b"PK\1\2")  # its place of "b" in the directory: let it lie in "a"
    path.write_bytes(content[: second + 42] + struct.pack("<I", 100) + content[second + 46 :])
    with pytest.raises(CheckFailed, match="'b' overlaps another file"):
        archives.open_zip(path)


@pytest.mark.usefixtures("peak")
def test_a_directory_of_gigabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.zip"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 1, 1, 1 << 30, 0, 0))
    with pytest.raises(CheckFailed, match="its directory has 1073741824 bytes"):
        archives.open_zip(path)


def test_a_text_is_read_up_to_its_limit(tmp_path):
    path = zipped(tmp_path / "a.zip", {"a": bytes(5 << 20), "b": b"text"})
    with archives.open_zip(path) as archive:
        assert archives.read_text(archive, "b") == b"text"
        with pytest.raises(CheckFailed, match="a: refused: it has more than 4 MiB"):
            archives.read_text(archive, "a")


@pytest.mark.parametrize(
    ("name", "reason"), [("a\0b", "no file"), ("\ud800", "no file"), ("n" * 300, "too long")]
)
def test_a_place_that_no_file_can_have_is_refused(tmp_path, name, reason):
    with pytest.raises(CheckFailed, match=reason):
        archives.inside(tmp_path, PurePosixPath(name, "x"))


@pytest.mark.parametrize("target", ["../..", "/", "//", "a/../../.."])
def test_a_place_below_a_root_is_strict_where_asked(tmp_path, target):
    (root := tmp_path / "root").mkdir()
    (root / "a").mkdir()
    (root / "link").symlink_to(target)
    assert archives.inside(root, PurePosixPath("link/x")) == root / "x"
    with pytest.raises(CheckFailed, match="leads outside"):
        archives.inside(root, PurePosixPath("link/x"), strict=True)
    assert archives.inside(root, PurePosixPath("a/../a/x"), strict=True) == Path(root / "a/x")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_unpacks_in_one_piece_is_refused(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as file:
        file.writestr("a", b"x")
    with pytest.raises(CheckFailed, match=f"'a' is compressed by method {method}"):
        archives.open_zip(tmp_path / "a.zip")


@pytest.mark.parametrize("name", ["a/" * 101 + "b", "../a", "/a", "//a"])
def test_a_zip_of_sources_does_not_lead_out_or_deep(tmp_path, name):
    (out := tmp_path / "out").mkdir()
    with pytest.raises(CheckFailed, match=r"outside of the destination|in more than 100 folders"):
        archives.unpack_zip(zipped(tmp_path / "a.zip", {name: b"x"}), out)
    assert list(out.iterdir()) == []


def test_what_follows_the_end_of_a_tar_counts(tmp_path):
    (out := tmp_path / "out").mkdir()
    path = tar(tmp_path / "a.tar.gz", ("a", b"x", {}))
    with path.open("ab") as file:
        file.write(gzip.compress(bytes(1 << 20)) * 300)
    with pytest.raises(CheckFailed, match="what it unpacks to looks like a bomb"):
        archives.unpack_tar(path, out)
