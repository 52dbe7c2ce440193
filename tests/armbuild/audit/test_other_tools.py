"""The audit inside of other tools, as the page says: called by cibuildwheel, and by pre-commit."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cibuildwheel import audit as cibuildwheel_audit
from cibuildwheel.errors import AuditCommandFailedError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[3] / "docs/audit.md").read_text()
SUFFIX = ".cpython-311-aarch64-linux-gnu.so"


def block(language):
    (found,) = (text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if "armllm" in text)
    return found


@pytest.fixture(autouse=True)
def _on_path(monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def test_cibuildwheel_runs_it_on_a_wheel_and_fails_with_it(wheel, elf, tmp_path):
    (override,) = tomllib.loads(block("toml"))["tool"]["cibuildwheel"]["overrides"]
    (tmp_path / "audit_venv/bin").mkdir(parents=True)
    (tmp_path / "audit_venv/pyvenv.cfg").touch()  # what is required is here already
    options = SimpleNamespace(
        audit_command=[override["audit-command"]],
        audit_requires=[],
        build_frontend=SimpleNamespace(name="build"),
        dependency_constraints=SimpleNamespace(get_for_python_version=lambda **_: None),
        package_dir=Path(),
    )
    cibuildwheel_audit.run_audit(
        tmp_dir=tmp_path, build_options=options, wheel=wheel({f"demo/x{SUFFIX}": elf()})
    )
    broken = wheel({f"demo/x{SUFFIX}": elf(machine=62)})
    with pytest.raises(AuditCommandFailedError):
        cibuildwheel_audit.run_audit(tmp_dir=tmp_path, build_options=options, wheel=broken)


def test_the_entry_for_pre_commit_takes_the_wheels_that_its_pattern_finds(wheel, elf):
    (hook,) = yaml.safe_load(block("yaml"))["repos"][0]["hooks"]
    for machine, status in ((183, 0), (62, 1)):
        path = wheel({f"demo/x{SUFFIX}": elf(machine=machine)})
        assert re.search(hook["files"], path.name)
        done = subprocess.run(
            [*shlex.split(hook["entry"]), path], check=False, capture_output=True, text=True
        )
        assert done.returncode == status, done.stdout + done.stderr
