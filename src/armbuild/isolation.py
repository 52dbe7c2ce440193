"""Isolated build environments (PEP 517), made with uv and kept: equal requirements share one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from armbuild import cache, process
from armbuild.errors import MissingError
from armbuild.pythons import tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from armbuild.pythons import HostPython

HOST_ONLY = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CMAKE_TOOLCHAIN_FILE",
)
"""Variables of the caller's shell that would leak another environment into the build."""


@dataclass(frozen=True)
class BuildEnvironment:
    """A virtual environment with a project's build requirements; the interface that ``build`` expects."""

    folder: Path

    @property
    def python_executable(self) -> str:
        """Return its interpreter."""
        return str(self.folder / "bin/python")

    def make_extra_environ(self) -> Mapping[str, str]:
        """Return what puts its programs first."""
        return {"PATH": os.pathsep.join((str(self.folder / "bin"), os.environ.get("PATH", os.defpath)))}


def environment(python: HostPython, requires: Iterable[str], *, log: Path) -> BuildEnvironment:
    """Return an environment of ``python`` with ``requires`` installed; raises BuildError with uv's reason."""
    wanted = sorted(requires)
    uv = uv_program()

    def fill(folder: Path) -> None:
        process.run(
            [
                uv,
                "venv",
                "-q",
                "--relocatable",
                "--no-project",
                "--python",
                python.executable,
                folder / "venv",
            ],
            log=log,
            what=f"virtual environment of Python {python.version}",
            env=clean(),
        )
        if wanted:
            process.run(
                [uv, "pip", "install", "-q", "--python", folder / "venv/bin/python", "--", *wanted],
                log=log,
                what="installing the build requirements",
                env=clean(),
            )

    key = cache.digest([str(python.executable), python.version, python.magic, wanted])
    return BuildEnvironment(cache.fill(cache.root() / "environments" / key, fill) / "venv")


def uv_program() -> Path:
    """Return uv; raises MissingError when it is not installed."""
    found = tool("uv")
    if found is None:
        raise MissingError("uv is not installed: pip install 'armllm[build]'")
    return found


def clean() -> dict[str, str]:
    """Return this process's environment without what belongs to another Python environment."""
    return {name: value for name, value in os.environ.items() if name not in HOST_ONLY}
