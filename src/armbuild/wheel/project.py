"""A Python project's own description: its name, its back end, what it needs to be built."""

from __future__ import annotations

import email.message
import email.parser
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from armbuild.artifact import archives, toml_file
from armbuild.errors import UsageError
from armbuild.host import process, pythons

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.wheel.fetch import Origin

EARLIEST = 315532800  # 1980-01-01, where the time of a zip member begins
KERNEL_TABLE = "src/armisa/data/kernels.toml"
FREE_THREADING = "Programming Language :: Python :: Free Threading"
RUST = frozenset({"maturin", "setuptools-rust", "puccinialin"})
"""Build requirements that compile Rust."""
_LIMIT = 1 << 20
"""Bytes of pyproject.toml and of PKG-INFO."""
_LONGEST_NAME = 128
"""Characters of a project's name, which folders and files have in theirs."""
_MOST_REQUIRED = 1000
"""Build requirements: looking up 100,000 takes minutes and gigabytes."""
LEGACY_BACKEND = "setuptools.build_meta:__legacy__"


@dataclass(frozen=True, kw_only=True)
class Project:
    """A folder with a PEP 517 build."""

    folder: Path
    name: str
    """Normalized; the folder's own name where the project computes it (setup.py)."""
    version: str | None
    """None where the back end computes it."""
    backend: str
    requires: tuple[str, ...]
    requires_python: str
    tool: dict[str, Any]
    """The ``[tool]`` table."""
    origin: Origin | None = None
    """The sdist that the folder was unpacked from."""
    free_threading: bool = False
    """Whether its classifiers say that it works without the global lock."""
    unpatched: Path | None = None
    """The folder as it was before patches changed a copy of it; None without patches."""

    @property
    def is_armllm(self) -> bool:
        """Whether this is the engine, whose kernel targets and smoke test armbuild knows."""
        return self.name == "armllm"

    @property
    def pythons(self) -> tuple[str, ...]:
        """Return the Pythons that ``--python all`` stands for."""
        more = pythons.FREE_THREADED if self.free_threading else ()
        return tuple(version for version in (*pythons.SUPPORTED, *more) if self.supports(version))

    def supports(self, version: str) -> bool:
        """Return whether ``requires-python`` allows a Python such as "3.11" or "3.14t"."""
        return SpecifierSet(self.requires_python).contains(f"{pythons.number(version)}.99")


def read(folder: Path, origin: Origin | None = None) -> Project:
    """Read ``pyproject.toml``, ``setup.py`` and an sdist's ``PKG-INFO``.

    Raises UsageError that says what is wrong with the folder.
    """
    if not folder.exists():
        raise UsageError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise UsageError(f"{folder}: not a project folder")
    folder = folder.resolve()
    path = folder / "pyproject.toml"
    if not path.is_file():
        if not (folder / "setup.py").is_file():
            raise UsageError(f"{folder}: not a Python project: it has neither pyproject.toml nor setup.py")
        table: dict[str, Any] = {}
    else:
        table = _load(path)
    build_system = table.get("build-system", {})
    project = table.get("project", {})
    if not isinstance(build_system, dict) or not isinstance(project, dict):
        raise UsageError(f"{path}: [build-system] and [project] must be tables")
    if path.is_file() and not build_system and not project and not (folder / "setup.py").is_file():
        raise UsageError(f"{path}: neither [build-system] nor [project]: it describes no package")
    stated = _package_info(folder) if origin else email.message.Message()
    requires_python = str(project.get("requires-python", stated.get("Requires-Python", "")))
    called = str(project.get("name", stated.get("Name", _plain(folder.name))))
    try:
        SpecifierSet(requires_python).contains("3")  # which alone reads its numbers
        requires = tuple(str(Requirement(item)) for item in _required(build_system, path))
        name = canonicalize_name(called, validate=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path}: {str(error).splitlines()[0]}") from error
    if len(name) > _LONGEST_NAME:
        raise UsageError(f"{path}: the project's name has more than {_LONGEST_NAME} characters")
    return Project(
        folder=folder,
        name=name,
        version=str(project["version"]) if "version" in project else stated.get("Version"),
        backend=str(build_system.get("build-backend", LEGACY_BACKEND)),
        requires=requires,
        requires_python=requires_python,
        tool=_tools(table, path),
        origin=origin,
        free_threading=any(
            str(line).startswith(FREE_THREADING)
            for line in (*_classifiers(project, path), *stated.get_all("Classifier", ()))
        ),
    )


def _required(build_system: dict[str, Any], path: Path) -> list[Any]:
    listed = build_system.get("requires", ["setuptools>=40.8.0"])  # PEP 517's default
    if not isinstance(listed, list):
        raise UsageError(f"{path}: [build-system] requires must be a list")
    if len(listed) > _MOST_REQUIRED:
        raise UsageError(f"{path}: [build-system] requires has more than {_MOST_REQUIRED} entries")
    return listed


def _tools(table: dict[str, Any], path: Path) -> dict[str, Any]:
    tools = table.get("tool", {})
    if not isinstance(tools, dict):
        raise UsageError(f"{path}: [tool] must be a table")
    return tools


def _classifiers(project: dict[str, Any], path: Path) -> list[Any]:
    listed = project.get("classifiers", [])
    if not isinstance(listed, list):
        raise UsageError(f"{path}: [project] classifiers must be a list")
    return listed


def _plain(folder: str) -> str:
    """Return a folder's name without what a distribution's name cannot have, such as spaces."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder).strip("-._") or "project"


def _package_info(folder: Path) -> email.message.Message:
    """Return what an sdist's own metadata says, where it has one."""
    path = folder / "PKG-INFO"
    text = archives.file_text(path, _LIMIT) if path.is_file() else ""
    return email.parser.HeaderParser().parsestr(text)


def needs_torch(described: Project) -> bool:
    """Return whether torch is among the build requirements: the project is compiled against its C++ API."""
    return any(canonicalize_name(Requirement(line).name) == "torch" for line in described.requires)


def announces_rust(described: Project) -> bool:
    """Return whether what compiles Rust is among the build requirements; hooks may call cargo without it."""
    return not RUST.isdisjoint(canonicalize_name(Requirement(line).name) for line in described.requires)


def kernel_targets(described: Project) -> tuple[str, ...]:
    """Return the AArch64 kernel targets that this version of the engine's sources has, lowest first.

    Its own table counts, not that of the armbuild that runs: the two may be of different versions.
    """
    path = described.folder / KERNEL_TABLE
    if not path.is_file():
        raise UsageError(f"{path}: no such file: this is not a whole source tree of armllm")
    try:
        targets = _load(path)["target"]
        return tuple(item["name"] for item in targets if item["machine"] in ("any", "aarch64"))
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path}: a [[target]] without {error}") from error


def source_epoch(described: Project) -> int:
    """Return SOURCE_DATE_EPOCH: the environment's, else the sdist's or last commit's time, else 1980."""
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    if stated:
        if not stated.isdigit():
            raise UsageError(f"SOURCE_DATE_EPOCH={stated}: not a number of seconds")
        return int(stated)
    if described.origin:
        return max(described.origin.epoch, EARLIEST)
    commit = process.succeeds([*process.GIT, "-C", described.folder, "log", "-1", "--format=%ct"])
    return int(commit) if commit else EARLIEST


def _load(path: Path) -> dict[str, Any]:
    try:
        return toml_file.read(path, _LIMIT)
    except ValueError as error:
        raise UsageError(f"{path}: not valid TOML, or too much of it: {error}") from error
