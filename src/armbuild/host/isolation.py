"""Isolated build environments (PEP 517), made with uv and cached: equal requirements share one."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from armbuild.errors import MissingError, UsageError
from armbuild.host import cache, limits, outputs, process
from armbuild.host.pythons import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from armbuild.host.pythons import HostPython

INSTALLED = """\
import json
from importlib.metadata import distributions
print(json.dumps({found.name: found.version for found in distributions() if found.name}))
"""
WHEELS_ONLY = ("--only-binary", ":all:")
"""uv's options for a sandbox: what is built from an sdist would run outside of it."""
SETTINGS_FREE = Path("/")
"""Where uv runs for a sandbox: the settings of a project may ask for what WHEELS_ONLY forbids."""
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
OPTION = re.compile(r"(?<!\S)-(?!-hash[=\s])\S+")
"""An option in a requirements file."""
HOST_ONLY = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CMAKE_TOOLCHAIN_FILE",
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
)
"""Variables of the caller's shell that would leak another environment into the build."""
LIBCLANG = "LIBCLANG_PATH"
INDEXES = (
    "UV_DEFAULT_INDEX",
    "UV_EXCLUDE_NEWER",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_STRATEGY",
    "UV_INDEX_URL",
    "UV_NO_INDEX",
)
"""uv's variables that say where packages come from: https://docs.astral.sh/uv/reference/environment/."""


@dataclass(frozen=True)
class BuildEnvironment:
    """A virtual environment with a project's build requirements; the interface that ``build`` expects."""

    folder: Path
    interpreter: Path | None = None
    """Where it is not ``bin/python``."""

    @property
    def python_executable(self) -> str:
        """Return its interpreter."""
        return str(self.interpreter or self.folder / "bin/python")

    def installed(self) -> dict[str, str]:
        """Return its packages' names and versions."""
        if self.interpreter is None:  # read from here: its packages' .pth files are programs too
            folders = [str(path) for path in self.folder.glob("lib/python3*/site-packages")]
            listed = {found.name: found.version for found in distributions(path=folders) if found.name}
        else:
            answer = process.succeeds([self.python_executable, "-I", "-c", INSTALLED])
            listed = json.loads(answer or "{}")
        return {canonicalize_name(name): version for name, version in listed.items()}

    def make_extra_environ(self) -> Mapping[str, str]:
        """Return what puts its programs first, and where bindgen finds its libclang, if it has one."""
        variables = {"PATH": os.pathsep.join((str(self.folder / "bin"), os.environ.get("PATH", os.defpath)))}
        library = next(self.folder.glob("lib/python3*/site-packages/clang/native/libclang.so"), None)
        if library and LIBCLANG not in os.environ:
            variables[LIBCLANG] = str(library.parent)
        return variables


def environment(
    python: HostPython,
    requires: Iterable[str],
    *,
    log: Path,
    lock: Path | None = None,
    wheels_only: bool = False,
    target: str = "",
    adapt: Callable[[Path], None] | None = None,
) -> BuildEnvironment:
    """Return an environment of ``python`` with ``requires`` installed; raises BuildError with uv's reason.

    ``lock``: a requirements file with a hash for each file; then it says what is installed, and nothing else.
    ``wheels_only``: nothing is built to be installed. ``adapt`` changes its packages for builds for
    ``target``, which share no environment with others.
    """
    wanted = sorted(requires)
    pinned = lock.read_text(encoding="utf-8") if lock else ""
    if wheels_only and (option := OPTION.search(COMMENT.sub("", pinned))):
        raise UsageError(f"--lock {lock}: {option[0]}: a sandbox takes requirements with hashes only")

    def fill(folder: Path) -> None:
        venv: list[str | Path] = [
            "venv",
            "-q",
            "--relocatable",
            "--no-project",
            "--python",
            python.executable,
        ]
        process.run(
            [uv_program(), *venv, folder / "venv"],
            log=log,
            what=f"virtual environment of Python {python.version}",
            env=clean(),
        )
        exact: list[str | Path] = ["--", *wanted]
        if lock:
            exact = ["--require-hashes", "--no-deps", "-r", lock.absolute()]
        only = WHEELS_ONLY if wheels_only else ()
        if wanted or lock:
            process.run(
                [uv_program(), "pip", "install", "-q", "--python", folder / "venv/bin/python", *only, *exact],
                log=log,
                what="installing the build requirements" + (f" of {lock.name}" if lock else ""),
                cwd=SETTINGS_FREE if wheels_only else None,
                env=clean(),
                limits=limits.BUILD,
            )
        if adapt:
            (site,) = folder.glob("venv/lib/python3*/site-packages")
            adapt(site)

    what = pinned if lock else wanted
    facts = [str(python.executable), python.version, python.magic, what, indexes()]
    key = cache.digest([*facts, *(WHEELS_ONLY if wheels_only else ()), *([target] * bool(target))])
    return BuildEnvironment(cache.fill(cache.root() / "environments" / key, fill) / "venv")


def existing(python: HostPython) -> BuildEnvironment:
    """Return the environment that an interpreter itself is, for builds without isolation."""
    return BuildEnvironment(python.executable.parent.parent, python.executable)


def write_lock(
    lock: Path, python: HostPython, requires: Iterable[str], *, log: Path, wheels_only: bool = False
) -> None:
    """Write ``lock``: every build requirement, at one version, with the hashes of its files."""
    with cache.work_folder("lock") as work:
        (work / "requires.in").write_text("".join(f"{line}\n" for line in sorted(requires)))
        resolved = work / lock.name
        options: list[str | Path] = [
            "-q",
            "--universal",
            "--generate-hashes",
            "--no-header",
            "--python",
            python.executable,
            *(WHEELS_ONLY if wheels_only else ()),
        ]
        process.run(
            [uv_program(), "pip", "compile", *options, "-o", resolved, work / "requires.in"],
            log=log,
            what="locking the build requirements",
            cwd=SETTINGS_FREE if wheels_only else None,
            env=clean(),
            limits=limits.BUILD,
        )
        text = re.sub(r"(?m)^\s*#.*\n", "", resolved.read_text())  # where each came from: our own folders
        resolved.write_text("# Build requirements, as `armbuild wheel --lock` resolved them.\n" + text)
        outputs.move_into(resolved, lock.absolute().parent)


def check_locked(lock: Path, environment: BuildEnvironment, requires: Iterable[str]) -> None:
    """Raise UsageError when a locked environment lacks what the project asks for."""
    missing = unsatisfied(environment, requires)
    if missing:
        raise UsageError(
            f"--lock {lock}: lacks {', '.join(missing)}: remove the file to have it written again"
        )


def unsatisfied(environment: BuildEnvironment, requires: Iterable[str]) -> list[str]:
    """Return those of ``requires`` that an environment does not satisfy, on this machine."""
    installed = environment.installed()
    missing = []
    for line in requires:
        wanted = Requirement(line)
        version = installed.get(canonicalize_name(wanted.name))
        if wanted.marker and not wanted.marker.evaluate():
            continue
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            missing.append(line)
    return missing


def uv_program() -> Path:
    """Return uv; raises MissingError when it is not installed."""
    found = tool("uv")
    if found is None:
        raise MissingError("uv is not installed: pip install 'armllm[build]'")
    return found


def indexes() -> dict[str, str]:
    """Return the package indexes of uv, a part of the cache's key."""
    return {name: os.environ[name] for name in INDEXES if name in os.environ}


def clean() -> dict[str, str]:
    """Return this process's environment without what belongs to another Python environment."""
    return {name: value for name, value in os.environ.items() if name not in HOST_ONLY}
