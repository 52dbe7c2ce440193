"""The native lane: the AArch64 machine's own compiler, through the project's own back end."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import process
from armbuild.target import arm64_headers
from armbuild.wheel.lanes.setup import Setup, prefix_map, settings
from armbuild.wheel.plan import STATIC

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.host.pythons import HostPython
    from armbuild.wheel.plan import Plan


def prepare(plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
    """Return the back end's world; raises MissingError without a C++ compiler or Python.h."""
    del mirror  # everything is this machine's own
    compiler = os.environ.get("CXX") or next(
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
    given = {name: os.environ.get(name, "") for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS")}
    return Setup(
        environment={
            "CFLAGS": " ".join([given["CFLAGS"], *flags]).strip(),
            "CXXFLAGS": " ".join([given["CXXFLAGS"], *flags]).strip(),
            "LDFLAGS": " ".join([given["LDFLAGS"], "-Wl,-s", *runtime]).strip(),
        },
        settings=settings(plan, folder),
        static=(("libstdc++", "GCC's C++ library"),) if runtime else (),
        headers=arm64_headers.described(python),
        compiler=(process.succeeds([*compiler.split(), "--version"]) or compiler).splitlines()[0],
    )
