import sys
import sysconfig
from pathlib import Path

import pytest

from armbuild.errors import MissingError, UsageError
from armbuild.host import pythons

RUNNING = "{}.{}".format(*sys.version_info[:2])
OTHER = next(version for version in pythons.SUPPORTED if version != RUNNING)


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("3.9", ""),
        ("311", "say 3.11"),
        ("cp312", "say 3.12"),
        ("3.11.4", "say 3.11"),
        ("cp314t", "say 3.14t"),
        ("cp315", "say 3.15"),
        ("3.15.2t", "say 3.15t"),
        ("3.16", ""),
        ("3.13t", ""),
        ("2.7", ""),
        ("", ""),
        ("pypy", ""),
    ],
)
def test_a_version_that_is_none_is_refused_with_what_was_meant(asked, hint):
    with pytest.raises(UsageError, match=f"not a supported version.*{hint}"):
        pythons.find(asked)


def test_the_next_python_has_its_tags_and_is_no_part_of_all():
    assert [pythons.tags(version) for version in ("3.15", "3.15t")] == ["cp315-cp315", "cp315-cp315t"]
    assert not {"3.15", "3.15t"} & {*pythons.SUPPORTED, *pythons.FREE_THREADED}


def test_the_running_interpreter_is_found_with_its_headers():
    found = pythons.find()
    assert found.version == RUNNING
    assert found == pythons.find(RUNNING)
    if found.include:
        assert (found.include / "Python.h").is_file()


@pytest.mark.parametrize(
    ("config", "serve"),
    [
        ('#define SOABI_PLATFORM "aarch64-linux-gnu"', True),
        ("# include <aarch64-linux-gnu/python3.99/pyconfig.h>", False),
    ],
    ids=["headers of AArch64, which name their platform", "Debian's, which need a file of AArch64"],
)
def test_headers_serve_the_target_unless_they_include_what_is_not_there(tmp_path, monkeypatch, config, serve):
    """A free-threaded Python of an AArch64 machine has no others."""
    (tmp_path / "Python.h").touch()
    (tmp_path / "pyconfig.h").write_text(config)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert pythons.find().include == (tmp_path if serve else None)


@pytest.fixture
def empty_machine(tmp_path, monkeypatch):
    for name in ("PATH", "HOME", "PYENV_ROOT", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


def fake(path, version):
    """An interpreter that runs the probe but says that it is ``version``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lie = f"import sys; sys.version_info = ({version.rstrip('t').replace('.', ',')}, 0); "
    if version.endswith("t"):
        lie += "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "
    lie += "exec(sys.argv[1])"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -c "{lie}" "$3"\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    "place",
    [
        "PATH/python{v}",
        "PYENV_ROOT/versions/{v}.7/bin/python{v}",
        "UV_PYTHON_INSTALL_DIR/cpython-{v}.1-linux-x86_64-gnu/bin/python{v}",
    ],
)
def test_an_interpreter_is_found_wherever_people_keep_them(empty_machine, place):
    fake(empty_machine / place.format(v=OTHER), OTHER)
    assert pythons.find(OTHER).version == OTHER


@pytest.mark.parametrize(
    "place",
    [
        "PATH/python3.14t",
        "PYENV_ROOT/versions/3.14.2t/bin/python3.14t",
        "UV_PYTHON_INSTALL_DIR/cpython-3.14.2+freethreaded-linux-x86_64-gnu/bin/python3.14t",
    ],
)
def test_a_free_threaded_interpreter_is_found_and_never_for_the_ordinary_one(empty_machine, place):
    fake(empty_machine / place, "3.14t")
    assert pythons.find("3.14t").version == "3.14t"
    fake(empty_machine / place.replace("python3.14t", "python3.14"), "3.14t")
    with pytest.raises(MissingError, match=r"no Python 3\.14 on"):
        pythons.find("3.14")


@pytest.mark.usefixtures("empty_machine")
def test_an_ordinary_interpreter_is_not_taken_for_the_free_threaded_one(empty_machine):
    fake(empty_machine / "PATH/python3.14t", "3.14")
    with pytest.raises(MissingError, match=r"no Python 3\.14t on"):
        pythons.find("3.14t")


def test_a_shim_that_does_not_run_is_no_interpreter(empty_machine):
    shim = empty_machine / f"PATH/python{OTHER}"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho 'pyenv: command not found' >&2; exit 127\n")
    shim.chmod(0o755)
    with pytest.raises(MissingError, match=f"no Python {OTHER} on this machine"):
        pythons.find(OTHER)


@pytest.mark.usefixtures("empty_machine")
def test_an_interpreter_of_another_version_under_a_false_name_is_not_taken(empty_machine):
    path = empty_machine / f"PATH/python{OTHER}"
    path.parent.mkdir()
    path.symlink_to(sys.executable)
    with pytest.raises(MissingError):
        pythons.find(OTHER)


def test_a_tool_beside_the_interpreter_is_found_without_activation(tmp_path, monkeypatch):
    for name in ("python", "tool"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(pythons.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert pythons.tool("tool") == tmp_path / "tool"
    assert pythons.tool("other") is None
    assert Path("/nowhere").exists() is False
