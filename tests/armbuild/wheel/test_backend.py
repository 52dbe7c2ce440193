"""The project's own back end, run without a compiler: what it says, and where that goes."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from armbuild.errors import BuildError
from armbuild.wheel import backend
from armbuild.wheel.settings import Settings

BACKEND = """\
import warnings
def get_requires_for_build_wheel(config_settings=None):
    warnings.warn("the list of requirements is deprecated")
    return []
def build_wheel(folder, config_settings=None, metadata_directory=None):
    warnings.warn("the wheel is deprecated")
    open(f"{folder}/thing-1-py3-none-any.whl", "w").close()
    return "thing-1-py3-none-any.whl"
"""
PROJECT = '[build-system]\nrequires = []\nbuild-backend = "own"\nbackend-path = ["."]\n'


def run(folder, code, described=PROJECT, hooks=None):
    (folder / "own.py").write_text(code)
    (folder / "pyproject.toml").write_text(described)
    project = SimpleNamespace(requires=(), folder=folder)
    plan = SimpleNamespace(lane="cross", settings=Settings(isolation=False), project=project)
    python = SimpleNamespace(version="3.11", executable=Path(sys.executable))
    return backend.build_wheel(
        plan, python, folder, folder / "out", settings={}, hooks=hooks or {}, log=folder / "log"
    )[0]


def test_what_a_back_end_warns_of_goes_to_the_log_and_to_nobody_else(tmp_path, capsys):
    assert run(tmp_path, BACKEND) == tmp_path / "out/thing-1-py3-none-any.whl"
    assert capsys.readouterr() == ("", "")
    said = (tmp_path / "log").read_text()
    assert "the list of requirements is deprecated" in said
    assert "the wheel is deprecated" in said


@pytest.mark.parametrize(
    ("code", "described", "reason"),
    [
        ("def build_wheel(*rest):\n    return None\n", PROJECT, "not 'NoneType'"),
        ("def get_requires_for_build_wheel(*rest):\n    return ['a b']\n", PROJECT, "or end a b$"),
        (BACKEND, PROJECT.replace('"."', '".."'), "paths must be inside source tree"),
    ],
)
def test_a_back_end_that_breaks_the_rules_is_blamed_in_a_line(tmp_path, code, described, reason):
    with pytest.raises(
        BuildError, match=f"(?m)^the project's build back end breaks PEP 517: .*{reason}"
    ) as caught:
        run(tmp_path, code, described)
    assert str(caught.value).splitlines()[1:] == [f"  log: {tmp_path / 'log'}"]
    assert (tmp_path / "log").is_file()


def test_programs_of_the_target_are_found_before_this_machines(tmp_path):
    code = f"import os\nprint(os.environ['PATH'])\n{BACKEND}"
    run(tmp_path, code, hooks={"PATH": "/target/bin"})
    (said,) = {line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("/target")}
    assert said.split(os.pathsep)[0] == "/target/bin"
    assert said.endswith(os.environ["PATH"])
