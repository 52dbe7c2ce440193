"""The cross lane: ``zig cc`` for AArch64 Linux on any machine, driven through the project's own back end."""

from __future__ import annotations

import functools
import os
from importlib.metadata import version
from typing import TYPE_CHECKING

from armbuild import cache, process
from armbuild.lanes.setup import Setup, backend_family, prefix_map, settings
from armbuild.plan import GLIBC
from armbuild.toolchain import kit

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.plan import Plan
    from armbuild.pythons import HostPython

RUNTIME_PROBE = """\
#include <stdexcept>
#include <string>
extern "C" int probe(int n) {
  std::string text(static_cast<std::size_t>(n), 'x');
  if (n > 5) throw std::runtime_error(text);
  return static_cast<int>(text.size());
}
"""


def prepare(plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
    """Make the kit and return the back end's world; raises MissingError without zig or headers."""
    tools = kit.make(
        python, glibc=GLIBC, flags=plan.flags, prefix_map=prefix_map(plan, folder), mirror=mirror
    )
    zig_cache = cache.root() / "zig"
    own = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(zig_cache)}
    zig = f"zig {version('ziglang')}"
    runtime = zig_cache / f"runtime-{version('ziglang')}-{GLIBC}"
    return Setup(
        environment=tools.environment(meson=backend_family(plan.project.backend) == "meson") | own,
        settings=settings(plan, folder, meson_arguments=[f"--cross-file={tools.cross_file}"]),
        compiler=zig,
        runtime=None if runtime.is_dir() else functools.partial(_build_runtime, runtime, tools, own),
    )


def _build_runtime(marker: Path, tools: kit.Kit, environment: dict[str, str], log: Path) -> None:
    """Link one small library, for which zig compiles libc++, libunwind and glibc's stubs into its cache."""

    def fill(folder: Path) -> None:
        source = folder / "probe.cpp"
        source.write_text(RUNTIME_PROBE)
        process.run(
            [tools.bin / "c++", "-O2", "-fPIC", "-shared", "-o", folder / "probe.so", source],
            log=log,
            what="zig's C++ runtime",
            env={**os.environ, **environment},
        )

    cache.fill(marker, fill)
