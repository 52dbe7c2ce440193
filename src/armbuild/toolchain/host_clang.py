"""The build machine's clang in a container of another architecture: it runs natively, the rest under QEMU.

zig's program is static, and clang too: its subcommand ``clang`` is the plain driver, without zig's C library.
With the container's headers, libstdc++, libgcc and linker it makes what a clang of the image's own would;
PyPA's static clang for manylinux images is the same idea (https://github.com/pypa/manylinux/pull/1933).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from armbuild.host import cache
from armbuild.toolchain import compilers

if TYPE_CHECKING:
    from pathlib import Path

PLACE = "/opt/armbuild"
"""Where it is in the container."""
SCRIPT = """\
#!/bin/sh
exec {place}/zig/zig clang --driver-mode={mode} --target=aarch64-linux-gnu -resource-dir {place}/zig/lib \
-Qunused-arguments "$@"
"""
MODES = {"cc": "gcc", "c++": "g++"}
"""The compilers' names, and clang's for what they are."""


def arguments() -> tuple[str, ...]:
    """Return the arguments of ``ENGINE create`` that bring it in; raises MissingError without ziglang."""
    return (
        f"--volume={compilers.zig().parent}:{PLACE}/zig:ro",
        f"--volume={_folder()}:{PLACE}/bin:ro",
        f"--env=CC={PLACE}/bin/cc",
        f"--env=CXX={PLACE}/bin/c++",
    )


def write() -> None:
    """Write the scripts that the container's builds call."""

    def fill(folder: Path) -> None:
        for name, mode in MODES.items():
            compilers.program(folder / name, SCRIPT.format(place=PLACE, mode=mode))

    cache.fill(_folder(), fill)


def _folder() -> Path:
    return cache.root() / "host-clang" / hashlib.sha256(SCRIPT.encode()).hexdigest()[:16]
