"""`armbuild wheel` as a whole where a folder is full: it names the folder, and leaves nothing of a wheel."""

import os
import subprocess
import sys

import pytest
from tests.armbuild.cli import pure_project

pytestmark = pytest.mark.slow


def build(tmp_path, full, size):
    """Build a wheel where the folder ``full`` has ``size`` bytes; the process lists the output at its end."""
    folders = {name: tmp_path / name for name in ("project", "cache", "temporary", "output")}
    pure_project.write(folders["project"])
    for name in ("cache", "temporary", "output"):
        folders[name].mkdir()
    wheel = [sys.executable, "-m", "armbuild", "-q", "wheel", folders["project"]]
    limit = ["--size", str(size), "--tmpfs", folders[full]] if full else []
    return folders, subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *limit,
         "sh", "-c", '"$@"; status=$?; ls -A "$0"; exit $status', folders["output"],
         *wheel, "--output", folders["output"]],
        env=os.environ | {"ARMBUILD_CACHE_DIR": str(folders["cache"]), "TMPDIR": str(folders["temporary"])},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_the_project_is_built_where_there_is_space(tmp_path):
    folders, done = build(tmp_path, None, 0)
    assert (done.returncode, done.stderr) == (0, "")
    listed = done.stdout.split()
    assert pure_project.WHEEL in listed
    assert f"{pure_project.WHEEL}.provenance.json" in listed
    assert list(folders["temporary"].iterdir()) == []


@pytest.mark.parametrize(
    ("full", "size"),
    [
        ("temporary", 1 << 14), ("temporary", 1 << 17),
        ("output", 1 << 12), ("output", 1 << 14), ("output", 1 << 17),
        ("cache", 1 << 12), ("cache", 1 << 16), ("cache", 1 << 18), ("cache", 3 << 17),
    ],
)  # fmt: skip
def test_a_full_folder_is_named_and_no_wheel_is_half_there(tmp_path, full, size):
    folders, done = build(tmp_path, full, size)
    assert done.returncode == 3, done.stderr
    assert "no space left on the device" in done.stderr
    assert str(folders[full]) in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") <= 2
