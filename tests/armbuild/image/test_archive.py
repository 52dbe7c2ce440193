"""Images are written as one archive, whole or not at all."""

import errno
import json
import multiprocessing
import os
import signal
import tarfile
import tempfile
from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild.image import archive


def test_an_archive_is_an_oci_layout_and_what_docker_load_reads(tmp_path):
    path = small.write(tmp_path, {"a": "1"}, {"b": "2"}, User="1:1")
    with tarfile.open(path) as tar:
        documents = {
            name: json.load(tar.extractfile(name)) for name in ("oci-layout", "index.json", "manifest.json")
        }
        names = set(tar.getnames())
    (entry,) = documents["index.json"]["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "localhost/small:1"
    (saved,) = documents["manifest.json"]
    assert saved["RepoTags"] == ["localhost/small:1"]
    assert {saved["Config"], *saved["Layers"]} <= names
    assert documents["oci-layout"] == {"imageLayoutVersion": "1.0.0"}


def test_equal_images_are_equal_files(tmp_path):
    one = small.write(tmp_path / "1", {"a": "1"})
    two = small.write(tmp_path / "2", {"a": "1"})
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes() != small.write(tmp_path / "3", {"a": "2"}).read_bytes()


@pytest.fixture(params=["O_TMPFILE", "hidden name"])
def folder(request, monkeypatch):
    """An output folder on a file system that has files without names, and on one that has not."""
    if request.param == "hidden name":
        opened = os.open

        def without(path, flags, mode=0o777, **options):
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, "Operation not supported")
            return opened(path, flags, mode, **options)

        monkeypatch.setattr(archive.os, "open", without)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_an_archive_replaces_what_was_there_and_has_the_users_mode(tmp_path, folder):
    (folder / "image.tar").write_text("old")
    made = [small.layer(tmp_path, {"a": "1"}, name="layer0")]
    mask = os.umask(0o027)
    try:
        archive.write([small.image(made)], folder / "image.tar", name="localhost/small:1")
    finally:
        os.umask(mask)
    assert (folder / "image.tar").read_bytes() == small.write(tmp_path / "2", {"a": "1"}).read_bytes()
    assert (folder / "image.tar").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in folder.iterdir()] == ["image.tar"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, folder, monkeypatch):
    made = small.layer(tmp_path, {"a": "1"})

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", fail)
    with pytest.raises(OSError, match=r"/x\.tar"):
        archive.write([small.image([made])], folder / "x.tar", name="localhost/x:1")
    assert not list(folder.iterdir())


@pytest.mark.parametrize("folder", ["O_TMPFILE"], indirect=True)
def test_a_write_that_is_killed_leaves_nothing_behind(tmp_path, folder, monkeypatch):
    made = small.layer(tmp_path, {"a": "1"})
    monkeypatch.setattr(archive.os, "fsync", lambda _file: os.kill(os.getpid(), signal.SIGKILL))
    writer = multiprocessing.get_context("fork").Process(
        target=archive.write,
        args=([small.image([made])], folder / "x.tar"),
        kwargs={"name": "localhost/x:1"},
    )
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert not list(folder.iterdir())
