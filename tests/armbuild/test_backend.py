"""The project's own back end, run without a compiler: what it says, and where that goes."""

import sys
from pathlib import Path
from types import SimpleNamespace

from armbuild import backend

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


def test_what_a_back_end_warns_of_goes_to_the_log_and_to_nobody_else(tmp_path, capsys):
    (tmp_path / "own.py").write_text(BACKEND)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    plan = SimpleNamespace(
        lane="cross", isolation=False, project=SimpleNamespace(requires=(), folder=tmp_path)
    )
    python = SimpleNamespace(version="3.11", executable=Path(sys.executable))
    made, _ = backend.build_wheel(
        plan, python, tmp_path, tmp_path / "out", settings={}, hooks={}, log=tmp_path / "log"
    )
    assert made == tmp_path / "out/thing-1-py3-none-any.whl"
    assert capsys.readouterr() == ("", "")
    said = (tmp_path / "log").read_text()
    assert "the list of requirements is deprecated" in said
    assert "the wheel is deprecated" in said
