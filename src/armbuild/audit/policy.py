"""auditwheel's verdict on symbol versions and outside libraries, from a process with limits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("symbol_versions.py")
SECONDS, SECONDS_PER_GB = 6, 60
"""Of CPU time, and for each gigabyte of ELF files. A wheel of torch takes 4."""
CLOCK = 60
"""How many times that by the clock: a busy machine gives a process a small part of its time."""
# The program's folder holds modules that are named as Python's own
START = "import runpy, sys; del sys.path[0], sys.argv[0]; runpy.run_path(sys.argv[0], None, '__main__')"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The strictest policy that the wheel keeps, the versions it needs, the libraries it expects outside."""

    name: str
    versions: dict[str, tuple[str, ...]]
    outside: tuple[str, ...]


def check_policy(
    path: Path, platforms: frozenset[str], machine: str
) -> tuple[Policy | None, list[str], list[str]]:
    """Return auditwheel's findings on a wheel with these platform tags, with errors and warnings."""
    seconds = SECONDS + SECONDS_PER_GB * path.stat().st_size // 10**9
    arguments = [str(PROGRAM), str(seconds), str(path), machine, *sorted(platforms)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", START, *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=CLOCK * seconds,
        )
        found, errors, warnings = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None, ["auditwheel can't analyze it: it used up its time or memory, or crashed"], []
    if found is None:
        return None, errors, warnings
    versions = {name: tuple(values) for name, values in found["versions"].items()}
    return Policy(name=found["name"], versions=versions, outside=tuple(found["outside"])), errors, warnings
