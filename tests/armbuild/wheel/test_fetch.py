import hashlib
import io
import os
import tarfile
import time
import urllib.parse
import zipfile

import pytest

from armbuild.errors import CheckFailed, MissingError, UsageError
from armbuild.wheel import fetch, project

INFO = b"Metadata-Version: 2.1\nName: Thing.Name\nVersion: 1.5\nRequires-Python: >=3.9\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


def sdist(folder, name="thing_name-1.5.tar.gz", members=None):
    path = folder / name
    members = members or {
        "thing_name-1.5/PKG-INFO": INFO,
        "thing_name-1.5/setup.py": b"",
        "thing_name-1.5/build/rules.cmake": b"x",
    }
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for member, content in members.items():
            entry = tarfile.TarInfo(member)
            entry.size, entry.mtime = len(content), 1600000000
            tar.addfile(entry, io.BytesIO(content))
    return path


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_folder_is_taken_as_it_is(tmp_path):
    assert fetch.locate(str(tmp_path)) == fetch.Located(folder=tmp_path)


@pytest.mark.parametrize("name", ["thing_name-1.5.tar.gz", "thing_name-1.5.zip"])
def test_an_sdist_file_tells_name_version_and_python_itself(tmp_path, name):
    path = sdist(tmp_path, name)
    found = fetch.locate(str(path))
    assert found.origin.sha256 == sha(path)
    described = project.read(found.folder, found.origin)
    assert (described.name, described.version, described.requires_python) == ("thing-name", "1.5", ">=3.9")


def test_the_metadata_of_an_sdist_are_read_up_to_a_limit(tmp_path):
    """A megabyte of fields takes Python's parser seconds, a gigabyte all memory."""
    long = {"thing_name-1.5/PKG-INFO": INFO + b" " * (1 << 20), "thing_name-1.5/setup.py": b""}
    found = fetch.locate(str(sdist(tmp_path, members=long)))
    with pytest.raises(CheckFailed, match=r"^PKG-INFO: refused: it has more than 1 MiB"):
        project.read(found.folder, found.origin)


def test_the_date_of_an_sdist_is_its_newest_files(tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    found = fetch.locate(str(sdist(tmp_path)))
    assert project.source_epoch(project.read(found.folder, found.origin)) == 1600000000


def test_a_date_that_no_wheel_can_have_is_the_last_one_that_it_can(tmp_path):
    path = tmp_path / "thing-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        entry = tarfile.TarInfo("thing-1/setup.py")
        entry.mtime = 32503680000  # in the year 3000
        tar.addfile(entry)
    date = time.gmtime(fetch.locate(str(path)).origin.epoch)[:6]
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("x", date), b"")


def test_an_address_is_downloaded_and_checked_against_its_own_hash(tmp_path):
    path = sdist(tmp_path)
    assert fetch.locate(f"{path.as_uri()}#sha256={sha(path)}").folder.name == "thing_name-1.5"
    with pytest.raises(UsageError, match=r"the index states 0{64}: not the file meant"):
        fetch.locate(f"{path.as_uri()}#sha256={'0' * 64}")


def test_a_hash_that_the_user_gave_must_match_and_unpacks_nothing_else(tmp_path):
    path = sdist(tmp_path)
    assert fetch.locate(str(path), hashes=["sha256:" + "0" * 64, f"sha256:{sha(path)}"])
    other = sdist(tmp_path, "other-1.tar.gz", {"other-1/setup.py": b"#"})
    with pytest.raises(UsageError, match="its sha256 is"):
        fetch.locate(str(other), hashes=[sha(path)])
    assert len([entry for entry in (tmp_path / "cache/sdists").iterdir() if entry.is_dir()]) == 1
    with pytest.raises(UsageError, match="--hash md5:12: not sha256"):
        fetch.locate(str(path), hashes=["md5:12"])
    with pytest.raises(UsageError, match="only an sdist has a hash"):
        fetch.locate(str(tmp_path), hashes=["0" * 64])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("./nowhere", "no such folder or file"),
        ("thing-1.0.tar.gz", "no such folder or file"),
        ("lz4=>4", "neither a folder, nor an sdist, nor a requirement"),
    ],
)
def test_what_names_nothing_is_refused_in_a_line(text, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        fetch.locate(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "members", "content", "reason"),
    [
        ("x-1.tar.gz", None, b"not a tar", "damaged, or not an sdist"),
        ("x-1.whl", None, b"PK", "not an sdist"),
        ("x-1.tar.gz", {"setup.py": b""}, None, "must hold one folder"),
        ("x-1.tar.gz", {"x-1/setup.py": b"", "../out.py": b""}, None, "damaged, or not an sdist"),
    ],
)
def test_a_bad_archive_is_refused_in_a_line_and_leaves_nothing(tmp_path, name, members, content, reason):
    path = sdist(tmp_path, name, members) if members else tmp_path / name
    if content:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as caught:
        fetch.locate(str(path))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.py").exists()
    assert not list((tmp_path / "cache").glob("sdists/*/setup.py"))


@pytest.mark.parametrize("name", ["x-1.tar.gz", "x-1.zip"])
def test_an_sdist_of_too_many_files_is_refused(tmp_path, monkeypatch, name):
    """Some kilobytes would make hundreds of thousands of files, which takes minutes."""
    monkeypatch.setattr(fetch, "_MOST_FILES", 10)
    members = {f"x-1/{number}.py": b"" for number in range(10)}
    path = sdist(tmp_path, name, {"x-1/setup.py": b"", **members})
    with pytest.raises(UsageError, match="refused: it has more than 10 files, folders"):
        fetch.locate(str(path))
    assert not [item for item in (tmp_path / "cache").rglob("*") if item.is_file() and item.suffix == ".py"]


@pytest.mark.parametrize("end", ["gz", "xz", "bz2", "zip"])
@pytest.mark.parametrize("content", [b"compressed " * 9000, os.urandom(1 << 17)], ids=["packed", "stored"])
def test_a_bit_that_flipped_on_the_way_is_noticed(tmp_path, end, content):
    path = tmp_path / f"x-1.{end}" if end == "zip" else tmp_path / f"x-1.tar.{end}"
    if end == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x-1/setup.py", content)
    else:
        with tarfile.open(path, f"w:{end}") as tar:
            entry = tarfile.TarInfo("x-1/setup.py")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    written = bytearray(path.read_bytes())
    written[len(written) // 2] ^= 1
    path.write_bytes(written)
    with pytest.raises(UsageError, match=r"x-1\..*: damaged, or not an sdist"):
        fetch.locate(str(path))


def test_an_encrypted_archive_is_refused(tmp_path):
    path = sdist(tmp_path, "x-1.zip", {"x-1/setup.py": b"1"})
    written = bytearray(path.read_bytes())
    for place in (6, written.rfind(b"PK\1\2") + 8):  # the flags of the member, and of the directory
        written[place] |= 1
    path.write_bytes(written)
    with pytest.raises(UsageError, match=r"x-1\.zip: damaged, or not an sdist .*encrypted"):
        fetch.locate(str(path))


def test_an_address_that_does_not_answer_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"x-1\.tar\.gz cannot be downloaded"):
        fetch.locate((tmp_path / "x-1.tar.gz").as_uri())


@pytest.mark.parametrize(
    "name",
    [
        "{outside}%2Fevil.tar.gz",
        "..%2F..%2F..%2Fevil.tar.gz",
        "a%00.tar.gz",
        "a%0Ab.tar.gz",
        "a" * 300 + ".zip",
    ],
)
def test_an_address_names_no_place_to_write(tmp_path, monkeypatch, name):
    """``%2F`` in it would lead out of the work folder, to wherever the server wants."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(cache))
    outside = urllib.parse.quote(str(tmp_path), safe="")
    with pytest.raises(UsageError, match="not an sdist's file name"):
        fetch.locate(f"http://127.0.0.1:1/{name.format(outside=outside)}")
    assert not list(tmp_path.rglob("*evil*"))


def test_a_download_that_is_refused_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    path = sdist(tmp_path)
    with pytest.raises(UsageError, match="not the file meant"):
        fetch.locate(path.as_uri(), hashes=["0" * 64])
    assert [item for item in (tmp_path / "cache").rglob("*") if item.is_file()] == []


def index(folder, *files):
    """A package index in a folder, as uv reads it through ``file:``."""
    page = folder / "simple/thing-name"
    page.mkdir(parents=True)
    page.joinpath("index.html").write_text(
        "".join(f'<a href="{file.as_uri()}#sha256={digest}">{file.name}</a>' for file, digest in files)
    )
    return (folder / "simple").as_uri()


def test_a_requirement_is_resolved_by_the_index_and_its_hash_is_kept(tmp_path, monkeypatch):
    path = sdist(tmp_path)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index(tmp_path, (path, sha(path))))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    found = fetch.locate("Thing_Name>=1", python="3.11")
    assert found.origin.sha256 == sha(path)
    assert found.origin.uri == path.as_uri()
    monkeypatch.setenv("COLUMNS", "60")  # uv wraps what it says
    with pytest.raises(MissingError, match=r"^thing-name>=2: Because only .* you require thing-name>=2$"):
        fetch.locate("thing-name>=2", python="3.11")
    both = "^nowhere: no such folder or file here, and no such project on the package index$"
    with pytest.raises(MissingError, match=both):
        fetch.locate("nowhere", python="3.11")
    with pytest.raises(UsageError, match="marker is false"):
        fetch.locate("thing-name; sys_platform == 'win32'", python="3.11")


def test_a_requirement_whose_file_is_not_the_one_the_index_states_is_refused(tmp_path, monkeypatch):
    path = sdist(tmp_path)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index(tmp_path, (path, "0" * 64)))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with pytest.raises((UsageError, MissingError), match=r"the index states|[Hh]ash mismatch"):
        fetch.locate("thing-name", python="3.11")


def test_a_requirement_without_an_sdist_says_so(tmp_path, monkeypatch):
    wheel = tmp_path / "thing_name-1.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("thing_name-1.5.dist-info/METADATA", INFO)
        archive.writestr("thing_name-1.5.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing_name-1.5.dist-info/RECORD", "")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index(tmp_path, (wheel, sha(wheel))))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with pytest.raises(UsageError, match=r"thing-name 1\.5 has no sdist on the index"):
        fetch.locate("thing-name", python="3.11")
    assert os.listdir(tmp_path / "cache/work") == []  # noqa: PTH208


def test_a_refused_sdist_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    for number, members in enumerate(
        ({"x-1/zeros": bytes(300 << 20)}, {"x-1/a": b"no project"}, {"x-1/../b": b""})
    ):
        with pytest.raises(UsageError, match="not an sdist"):
            fetch.locate(str(sdist(tmp_path, f"x-{number}.tar.gz", members)))
    assert list((tmp_path / "cache/sdists").iterdir()) == []
