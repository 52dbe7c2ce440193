"""Interpreters that this machine lacks: Debian's packages, run by their own loader, or uv's."""

from __future__ import annotations

import platform
import shlex
import shutil
from typing import TYPE_CHECKING

from armbuild.errors import MissingError
from armbuild.host import cache, isolation, limits, process, pythons
from armbuild.target import arm64_headers, arm64_root, debian

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.host.pythons import HostPython

MACHINES = {
    "x86_64": ("amd64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    "aarch64": ("arm64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
}
"""uname's machine -> Debian's name for it, its library folder, its dynamic loader."""
RUN = """\
#!/bin/sh
# Another release's Python, with that release's C library; "$0" may be a virtual environment's.
exec {loader} --library-path {libraries} --argv0 "$0" {program} "$@"
"""


def fetch(version: str, *, mirror: str | None) -> HostPython:
    """Return CPython ``version`` for this machine, from Debian or through uv, cached.

    Raises MissingError, with both reasons, when neither brings it.
    """
    reasons = []
    for bring in (_from_debian, _from_uv):
        try:
            found = pythons.probe(bring(version, mirror))
        except MissingError as error:
            reasons.append(str(error).splitlines()[0])
            continue
        if found and found.version == version:
            return found
        reasons.append(f"what {bring.__name__.rpartition('_')[2]} brought does not run here")
    raise MissingError(
        f"no Python {version} on this machine, and none to be had: {'; '.join(reasons)}\n"
        f"  a python{version} on PATH, or of pyenv, is found"
    )


def _from_debian(version: str, mirror: str | None) -> Path:
    """Unpack Debian's interpreter with the target's headers, and write a script that starts it."""
    suite, machine = arm64_root.SUITES.get(version), MACHINES.get(platform.machine())
    if suite is None or machine is None:
        raise MissingError(f"no Debian release carries Python {version} for {platform.machine()}")
    architecture, triplet, loader = machine
    folder = debian.cache_folder("pythons", f"{suite}-{version}", mirror)

    def fill(root: Path) -> None:
        debian.install((f"python{version}",), root, suite=suite, architecture=architecture, mirror=mirror)
        headers, config, _ = arm64_headers.folders(version, mirror=mirror)
        target = root / f"usr/include/python{version}"
        shutil.copytree(headers, target, dirs_exist_ok=True)
        shutil.copyfile(config / "pyconfig.h", target / "pyconfig.h")  # Debian's own names another file
        libraries = folder / "usr/lib" / triplet
        start = root / f"usr/bin/armbuild-python{version}"
        start.write_text(
            RUN.format(
                loader=shlex.quote(str(libraries / loader)),
                libraries=shlex.quote(str(libraries)),
                program=shlex.quote(str(folder / f"usr/bin/python{version}")),
            )
        )
        start.chmod(0o755)

    return cache.fill(folder, fill) / f"usr/bin/armbuild-python{version}"


def _from_uv(version: str, mirror: str | None) -> Path:
    del mirror  # uv has its own
    folder, uv = cache.root() / "pythons" / f"uv-{version}", isolation.uv_program()

    def fill(place: Path) -> None:
        process.run(
            [uv, "python", "install", "--no-progress", "--no-bin", "--install-dir", place, version],
            log=place / "uv.log",
            what=f"uv python install {version}",
            env=isolation.clean() | {"UV_HTTP_TIMEOUT": "20"},
            error=MissingError,
            limits=limits.DOWNLOAD,
        )

    found = sorted(cache.fill(folder, fill).glob(f"cpython-{pythons.number(version)}.*/bin/python{version}"))
    if not found:
        raise MissingError(f"uv installed no Python {version}")
    return found[-1]
