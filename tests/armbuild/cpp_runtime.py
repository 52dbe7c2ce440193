"""zig's C++ runtime in the cache of a test: it takes a minute or two to build, and is not what is tested."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from armbuild.host import cache

if TYPE_CHECKING:
    from pathlib import Path


def copy(folder: Path) -> None:
    """Copy what this machine's cache has into the cache ``folder``, for builds in and out of a sandbox."""
    zig = cache.root() / "zig"
    for runtime in [path for path in zig.glob("runtime-*") if path.is_dir()]:
        shutil.copytree(zig, folder / "zig", dirs_exist_ok=True)
        shutil.copytree(runtime, folder / "zig-copied" / runtime.name)
        shutil.copytree(zig, folder / "zig-copied" / f"{runtime.name}-cache")
