"""The descendants of a process: found and ended together, also when armbuild was killed.

Run as a program, it outlives armbuild (kill -9) and ends what that left running. Nothing but the standard
library, since it starts with each build.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FINISHED = "."
"""What armbuild sends when it ends without being killed."""
PATIENCE = 2.0
"""Seconds in which compilers may remove what they half wrote."""


def parent(process: int) -> int:
    """Return the parent of a process; OSError where there is none."""
    return int(Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])


def members(leaders: Iterable[int]) -> set[int]:
    """Return the processes of these sessions and all their descendants.

    ninja gives each compiler a process group, an engine each container a session of its own (proc(5)).
    Those whose parent has died are found by their session alone, which psutil does not read. With os.getsid
    beside it, psutil 7.2 takes as many lines, 1.6 times the CPU time, and 24 ms to import.
    """
    known = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - names only
        with contextlib.suppress(OSError):  # it has ended by now; glob would look at it and raise
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                known[int(name)] = int(fields[1]), int(fields[3])
    sessions = set(leaders)
    found: set[int] = set()
    while more := {
        process
        for process, (parent, session) in known.items()
        if process not in found and (session in sessions or parent in found)
    }:
        found |= more
    return found


def send(processes: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of ``processes`` that is still there."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def watch(lines: Iterable[str]) -> None:
    """Follow which sessions begin (``+N``) and end (``-N``); end the rest if ``lines`` stop unannounced."""
    running: set[int] = set()
    for line in lines:
        if line.strip() == FINISHED:
            return
        (running.add if line[0] == "+" else running.discard)(int(line[1:]))
    family = members(running)
    send(family, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while (left := members(running) | {item for item in family if Path(f"/proc/{item}").is_dir()}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.02)
        family |= left
    send(left, signal.SIGKILL)


if __name__ == "__main__":
    watch(sys.stdin)
