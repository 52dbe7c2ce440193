"""The native lane: the AArch64 machine's own compiler, through the project's own back end."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from armbuild.errors import MissingError, UsageError
from armbuild.host import process
from armbuild.target import arm64_headers
from armbuild.toolchain import compile_cache, crossenv, rust
from armbuild.wheel.interpreters import find_interpreters
from armbuild.wheel.lanes import local
from armbuild.wheel.lanes.local import refuse_container_settings
from armbuild.wheel.lanes.setup import Setup, prefix_map, settings
from armbuild.wheel.plan import STATIC

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.lane import BuiltWheel, Watcher
    from armbuild.wheel.plan import Plan


def plan(draft: Plan, find: Callable[[str], HostPython]) -> Plan:
    """Check that this is an AArch64 machine, and refuse settings that this lane decides."""
    settings = draft.settings
    if platform.machine() != "aarch64":
        raise UsageError(
            f"--lane native builds on an AArch64 machine, and this is {platform.machine()}: use --lane cross"
        )
    refuse_container_settings(settings, "native")
    pythons, missing = find_interpreters(draft.project, settings.python, find)
    if settings.toolchain:
        raise UsageError(
            f"--toolchain {settings.toolchain}: the native lane has this machine's compiler: set CC and CXX"
        )
    if draft.packages:
        raise UsageError(
            f"--with: the native lane uses what is installed: `apt-get install {' '.join(draft.packages)}`"
        )
    return replace(
        draft,
        pythons=pythons,
        missing=missing,
        flags=draft.baseline_flags("gcc"),
        compile_cache=compile_cache.find("none" if settings.sandbox else settings.compile_cache),
    )


def build(plan: Plan, python: HostPython, work: Path, *, mirror: str | None, watcher: Watcher) -> BuiltWheel:
    """Build with the project's own back end and this machine's compiler."""

    def setup(folder: Path) -> Setup:
        return prepare(plan, python, folder)

    return local.build(plan, python, work, mirror=mirror, watcher=watcher, prepare=setup)


def prepare(plan: Plan, python: HostPython, folder: Path) -> Setup:
    """Return the environment of the back end; raises MissingError without a C++ compiler or Python.h."""
    environ = {**os.environ, **dict(plan.variables)}
    compiler = environ.get("CXX") or next(
        (name for name in ("c++", "g++", "clang++") if shutil.which(name)), None
    )
    if compiler is None:
        raise MissingError("no C++ compiler: install g++ 12 or clang 15 or newer (`apt-get install g++`)")
    if python.include is None:
        raise MissingError(f"no Python.h for Python {python.version}: install python{python.version}-dev")
    flags = [
        *plan.flags,
        *(f"-ffile-prefix-map={old}={new}" for old, new in sorted(prefix_map(plan, folder).items())),
    ]
    runtime = STATIC if plan.project.is_armllm else ()
    own = {name: environ.get(name, "") for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS")}
    sources = {}
    if plan.sources:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sources.cmake").write_text(crossenv.SOURCES)
        sources = {"CMAKE_TOOLCHAIN_FILE": str(folder / "sources.cmake")}
    return Setup(
        environment={
            **sources,
            "CFLAGS": " ".join([own["CFLAGS"], *flags]).strip(),
            "CXXFLAGS": " ".join([own["CXXFLAGS"], *flags]).strip(),
            "LDFLAGS": " ".join([own["LDFLAGS"], "-Wl,-s", *runtime]).strip(),
            **rust.baseline(plan.baseline_flags("zig")),
        },
        settings=settings(plan, folder),
        static=(("libstdc++", "GCC's C++ library"),) if runtime else (),
        headers=arm64_headers.described(python),
        compiler=(process.succeeds([*compiler.split(), "--version"]) or compiler).splitlines()[0],
    )
