"""Python packages for AArch64, installed on any machine: uv unpacks them, none of their code runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from armbuild.errors import MissingError
from armbuild.host import cache, isolation, limits, process, pythons

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armbuild.artifact.wheelfile import WheelFile
    from armbuild.host.pythons import HostPython

PLATFORM = "aarch64-manylinux_2_28"
"""The floor of torch's AArch64 wheels; Debian's roots are newer."""
MUSL = "aarch64-unknown-linux-musl"
NEWEST = "aarch64-manylinux_2_40"
"""For a wheel that is at hand: whether it runs is for the run to say, not for its tag."""


def requirements(wheel: WheelFile, python: str, extras: Iterable[str]) -> list[str]:
    """Return what a wheel needs on AArch64 Linux with ``extras``, which may name further extras."""
    lines = [Requirement(line) for line in wheel.requires]
    wanted, done, found = ["", *extras], set[str](), set[str]()
    while wanted:
        extra = wanted.pop()
        if extra in done:
            continue
        done.add(extra)
        for line in lines:
            if line.marker and not line.marker.evaluate({**marker_environment(python), "extra": extra}):
                continue
            if canonicalize_name(line.name) == wheel.name:
                wanted += line.extras
            else:
                line_extras = f"[{','.join(sorted(line.extras))}]" if line.extras else ""
                found.add(
                    f"{line.name}{line_extras} @ {line.url}"
                    if line.url
                    else f"{line.name}{line_extras}{line.specifier}"
                )
    return sorted(found)


def marker_environment(python: str) -> dict[str, str]:
    """Return the environment markers (PEP 508) of CPython ``python`` on AArch64 Linux."""
    python = pythons.number(python)
    return {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": "aarch64",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "platform_python_implementation": "CPython",
        "python_version": python,
        "sys_platform": "linux",
    }


def cached(
    packages: list[str], python: str, *, host: HostPython | None, log: Path, musl: bool = False
) -> Path:
    """Return a folder with ``packages`` and all they need, installed once, compiled by ``host`` if given."""
    files = [Path(package) for package in packages if os.sep in package and Path(package).is_file()]
    platform = MUSL if musl else NEWEST if files else PLATFORM

    def fill(folder: Path) -> None:
        install(packages, python, folder, log=log, platform=platform)
        if host:
            compile_all(host, folder, log=log)

    contents = [cache.sha256(file) for file in files]
    key = cache.digest([platform, python, packages, contents, isolation.indexes()])
    return cache.fill(cache.root() / "target-packages" / key, fill)


def install(
    packages: Iterable[str | Path],
    python: str,
    folder: Path,
    *,
    log: Path,
    dependencies: bool = True,
    platform: str = PLATFORM,
) -> None:
    """Install ``packages`` (requirements or files) into ``folder``; raises MissingError with uv's reason."""
    target = ["--python-platform", platform, "--python-version", pythons.number(python)]
    target += ["--only-binary", ":all:"]
    if python.endswith("t"):  # a version has no letter: what tags fit is the interpreter's to say
        target += ["--python", str(pythons.find(python).executable)]
    if not dependencies:
        target.append("--no-deps")
    # "build" is a requirement, also where a folder has that name; "./build" is a path, as pip reads it.
    wanted = [
        str(Path(package).absolute()) if os.sep in (text := str(package)) and Path(text).exists() else text
        for package in packages
    ]
    if not wanted:
        return
    process.run(
        [
            isolation.uv_program(),
            "pip",
            "install",
            "-q",
            *target,
            "--target",
            folder.absolute(),
            "--",
            *wanted,
        ],
        log=log,
        what=f"installing packages for AArch64, Python {python}",
        cwd=isolation.SETTINGS_FREE,
        env=isolation.clean(),
        error=MissingError,
        limits=limits.DOWNLOAD,
    )


def swap_libraries(python: str, platform: str, log: Path, site: Path) -> None:
    """Replace the static libraries of packages in ``site``, which a build links, by the target's.

    Those are in the wheel of the same version (numpy has libnpymath.a, libnpyrandom.a). A package without
    such a wheel keeps its own.
    """
    for package in list(distributions(path=[str(site)])):
        libraries = [file for file in package.files or () if file.suffix == ".a"]
        if not libraries:
            continue
        with cache.work_folder("libraries") as work, contextlib.suppress(MissingError):
            only = [f"{package.name}=={package.version}"]
            install(only, python, work, log=log, dependencies=False, platform=platform)
            for file in libraries:
                if (work / file).is_file():
                    (site / file).unlink()  # it may be a link to a file in uv's cache
                    shutil.copyfile(work / file, site / file)


def compile_all(host: HostPython, folder: Path, *, log: Path) -> None:
    """Compile the Python files below ``folder`` here, natively: bytecode is the same on every machine."""
    command = f"-I -m compileall -q -j 0 --invalidation-mode unchecked-hash {shlex.quote(str(folder))}"
    # packages ship a few files of other Python versions that do not compile: no reason to stop
    process.run(
        ["sh", "-c", f"{shlex.quote(str(host.executable))} {command} || true"],
        log=log,
        what="compiling Python",
    )
