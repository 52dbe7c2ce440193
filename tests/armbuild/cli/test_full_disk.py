"""`armbuild wheel` as a whole where a folder is full: it names the folder, and leaves nothing of a wheel."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROJECT = {
    "pyproject.toml": """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "thing"
version = "1.0"
""",
    "backend.py": """\
import os, pathlib, tempfile, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryFile(dir=os.environ["TMPDIR"]) as file:
        file.write(bytes(1 << 18))
    texts = {
        "thing.py": os.urandom(1 << 17).hex(),
        "thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\\nName: thing\\nVersion: 1.0\\n",
        "thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "thing-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(pathlib.Path(folder) / "thing-1.0-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            texts["thing-1.0.dist-info/RECORD"] += f"{path},,\\n"
        for path, text in texts.items():
            archive.writestr(path, text)
    return "thing-1.0-py3-none-any.whl"
""",
}


def build(tmp_path, full, size):
    """Build a wheel where the folder ``full`` has ``size`` bytes; the process lists the output at its end."""
    folders = {name: tmp_path / name for name in ("project", "cache", "temporary", "output")}
    for folder in folders.values():
        folder.mkdir()
    for name, text in PROJECT.items():
        (folders["project"] / name).write_text(text)
    wheel = [
        sys.executable,
        "-m",
        "armbuild",
        "-q",
        "wheel",
        folders["project"],
        "--output",
        folders["output"],
    ]
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
    assert "thing-1.0-py3-none-any.whl" in listed
    assert "thing-1.0-py3-none-any.whl.provenance.json" in listed
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
