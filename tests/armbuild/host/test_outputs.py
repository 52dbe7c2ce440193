import errno
import os
import resource
import shutil
from pathlib import Path

import pytest

from armbuild.host import outputs


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path):
    (path := tmp_path / "report").write_text("old")
    (link := tmp_path / "link").symlink_to(path)

    def half(sink):
        sink.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        outputs.replace_file(path, half)
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    outputs.replace_file(link, lambda sink: sink.write(b"new"))
    assert (path.read_text(), link.is_symlink()) == ("new", True)
    outputs.replace_file(Path(os.devnull), lambda sink: sink.write(b"x"))
    assert Path(os.devnull).is_char_device()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link", "report"]


def test_a_moved_file_replaces_an_older_one_and_leaves_no_scratch(tmp_path):
    out = tmp_path / "dist"
    out.mkdir()
    (out / "a.whl").write_text("old")
    (tmp_path / "a.whl").write_text("new")
    assert outputs.move_into(tmp_path / "a.whl", out) == out / "a.whl"
    assert [path.name for path in out.iterdir()] == ["a.whl"]
    assert (out / "a.whl").read_text() == "new"
    assert not (tmp_path / "a.whl").exists()


def test_a_move_that_fails_leaves_the_output_folder_as_it_was(tmp_path, monkeypatch):
    out = tmp_path / "dist"
    out.mkdir()
    (tmp_path / "a.whl").write_text("new")

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space"):
        outputs.move_into(tmp_path / "a.whl", out)
    assert list(out.iterdir()) == []
    assert (tmp_path / "a.whl").exists()


def test_no_space_in_the_output_folder_is_said_of_the_wheel_and_leaves_nothing_there(tmp_path, monkeypatch):
    def full(_source, sink, _length):
        sink.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "x.whl").write_bytes(b"whole")
    monkeypatch.setattr(outputs.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=r"dist/x\.whl"):
        outputs.move_into(tmp_path / "x.whl", tmp_path / "dist")
    assert not list((tmp_path / "dist").iterdir())
    assert (tmp_path / "x.whl").read_bytes() == b"whole"


def test_a_write_that_fails_again_when_the_file_is_closed_is_said_of_the_wheel(tmp_path):
    """Else the second error, which knows no file, would blame the cache for a full output folder."""
    (tmp_path / "x.whl").write_bytes(b"whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2, hard))
    try:
        with pytest.raises(OSError, match=r"dist/x\.whl"):
            outputs.move_into(tmp_path / "x.whl", tmp_path / "dist")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "dist").iterdir())


def test_files_are_moved_all_or_none(tmp_path, monkeypatch):
    files = [tmp_path / "a.json", tmp_path / "a.whl"]
    for file in files:
        file.write_text("new")
    (out := tmp_path / "out").mkdir()
    copied = shutil.copyfileobj

    def full(source, sink, length):
        if source.name.endswith(".whl"):
            raise OSError(errno.ENOSPC, "No space left on device")
        copied(source, sink, length)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left") as caught:
            outputs.move_all_into(files, out)
    assert caught.value.filename == str(out / "a.whl")
    assert list(out.iterdir()) == []
    assert outputs.move_all_into(files, out) == [out / "a.json", out / "a.whl"]
    assert not any(file.exists() for file in files)
