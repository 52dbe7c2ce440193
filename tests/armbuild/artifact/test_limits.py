"""A file that would keep its reader busy for ever is refused; an ordinary large one is not."""

import errno

import pytest

from armbuild.artifact import limits, tar_headers
from armbuild.errors import CheckFailed


@pytest.mark.parametrize("end", [b"", b"x" * 5000])
def test_a_file_of_holes_is_refused_before_it_is_read(tmp_path, end):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(b"x" * 5000)
        file.seek((1 << 42) - len(end))
        file.write(end)
        file.truncate(1 << 42)
    with pytest.raises(CheckFailed, match=r"refused: 4398046511104 bytes, of which all but \d+ are holes"):
        limits.refuse_holes(path)


def test_a_large_file_with_some_holes_is_read(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        for place in range(4):
            file.seek(place * (70 << 20))
            file.write(bytes(1 << 20))
        file.truncate(280 << 20)
    limits.refuse_holes(path)


def test_a_disk_that_cannot_name_its_holes_is_an_error(tmp_path, monkeypatch):
    """Catches a full file that is refused as empty because its file system answers with an error."""

    def seek(*_):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(280 << 20)
    monkeypatch.setattr(limits.os, "lseek", seek)
    with pytest.raises(OSError, match="Input/output error"):
        limits.refuse_holes(path)


def test_extended_headers_count_and_several_images_share_the_limit(tmp_path):
    """Each header takes time: without a limit of them, a layer of 2 MB was read for 80 seconds."""
    entry = tar_headers.Entry("a")
    entry.headers, entry.text = 4, 100
    budget = limits.Budget(tmp_path / "a.tar", 1, most=24, images=2)
    assert len(list(budget.entries([entry] * 3))) == 3
    with pytest.raises(CheckFailed, match="more than 12 files, folders and headers in one of 2 images"):
        list(budget.entries([entry]))


def test_folders_that_paths_imply_count_once(tmp_path):
    budget = limits.Budget(tmp_path / "a.tar", 1, most=7)
    budget.take_path("a", folder=True)
    for path in ("a/b/c", "a/b/d", "a/b/c/", "./a"):
        budget.take_path(path)
    assert budget.count == 7  # a, a/b, three entries in it, and . with one
    with pytest.raises(CheckFailed, match=r"a\.tar: refused: it has more than 7 files, folders and headers"):
        budget.take_path("e")
