"""The cross lane: ``zig cc`` for AArch64 Linux on any machine, driven through the project's own back end."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from armbuild import cache
from armbuild.lanes.setup import Setup, backend_family, prefix_map, settings
from armbuild.plan import GLIBC
from armbuild.toolchain import kit

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.plan import Plan
    from armbuild.pythons import HostPython


def prepare(plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
    """Make the kit and return the back end's world; raises MissingError without zig or headers."""
    tools = kit.make(
        python, glibc=GLIBC, flags=plan.flags, prefix_map=prefix_map(plan, folder), mirror=mirror
    )
    zig_cache = str(cache.root() / "zig")
    environment = tools.environment(meson=backend_family(plan.project.backend) == "meson")
    return Setup(
        environment=environment | {"ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache},
        settings=settings(plan, folder, meson_arguments=[f"--cross-file={tools.cross_file}"]),
        compiler=f"zig {version('ziglang')}",
    )
