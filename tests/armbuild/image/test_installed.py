"""An image has a wheel's very files, or the check says which differ."""

import zipfile

import pytest
from tests.armbuild.audit.conftest import RET, make_elf, make_wheel
from tests.armbuild.image import small

from armbuild import verify
from armbuild.cli import main

CODE = "demo/x.cpython-311-aarch64-linux-gnu.so"


@pytest.fixture
def wheel(tmp_path):
    return make_wheel(tmp_path, {CODE: make_elf([("plain", ".text", [RET])]), "demo/__init__.py": b""})


@pytest.fixture
def files(wheel):
    """What an installer makes of the wheel, below opt/site."""
    with zipfile.ZipFile(wheel) as made:
        installed = {f"opt/site/{name}": made.read(name) for name in made.namelist()}
    installed["opt/site/demo/__pycache__/x.pyc"] = b"compiled"
    installed["opt/site/demo-1.0.dist-info/RECORD"] = b"as the installer wrote it"
    return installed


def checks(wheel, folder, files):
    path = small.write(folder, files)
    return [(one.ok, one.text) for one in verify.check(path, wheels=[wheel]) if one.part == "wheel"]


def renamed(files, version):
    return {name.replace("demo-1.0", f"demo-{version}"): content for name, content in files.items()}


def test_the_files_of_the_wheel_pass(wheel, files, tmp_path):
    count = len(files) - 2  # without RECORD and bytecode
    assert checks(wheel, tmp_path, files) == [(True, f"linux/arm64 has the {count} files of {wheel.name}")]


def test_another_spelling_of_the_version_is_the_same_one(wheel, files, tmp_path):
    found = checks(wheel, tmp_path, renamed(files, "1.0.0"))
    assert not any("has version" in text for _, text in found)


def test_other_code_under_the_same_name_is_found(wheel, files, tmp_path):
    code = f"opt/site/{CODE}"
    changed = {**files, code: files[code] + b"x", "opt/site/demo/more.py": b""}
    del changed["opt/site/demo/__init__.py"]
    assert checks(wheel, tmp_path, changed) == [
        (False, "opt/site/demo/__init__.py is missing"),
        (False, "opt/site/demo/more.py is not in the wheel"),
        (False, f"{code} is not the wheel's"),
    ]


def test_another_version_is_found_by_the_command(wheel, files, tmp_path, capsys):
    path = small.write(tmp_path / "other", renamed(files, "1.1"))
    assert main(["verify", str(wheel), str(path)]) == 1
    assert f"the image has version 1.1, not that of {wheel.name}" in capsys.readouterr().out


def test_an_image_without_the_project_is_not_compared(wheel, tmp_path):
    found = checks(wheel, tmp_path, {"a": "1"})
    assert found == [(None, f"linux/arm64 has nothing of {wheel.name}")]
