"""Limits for programs that download and unpack: the time, the memory, and the bytes that are written.

Those of memory and bytes are of all processes of a program together.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.host import family
from armbuild.host.download import MAX_BYTES, MAX_SECONDS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

LOOK_EVERY = 0.5  # seconds
LONGEST_SLEEP = 0.02


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a program may use until it is ended."""

    seconds: float = MAX_SECONDS
    file_bytes: int = MAX_BYTES
    """Of one file."""
    written_bytes: int = 4 * MAX_BYTES
    """Of all files: what was downloaded, and what came out of it."""
    processes: int | None = None
    """All at once. RLIMIT_NPROC does not hold for root."""
    memory_bytes: int | None = 4 << 30
    """Of its own, which it shares with no file or other process. None: as much as ``left`` allows."""
    left: float = 0.03
    """The part of the machine's memory that must stay available."""

    @property
    def too_large(self) -> str:
        """Say that a file became larger than ``file_bytes``."""
        return f"it wrote a file of more than {_size(self.file_bytes)}"

    @property
    def _too_much(self) -> str:
        return f"it wrote more than {_size(self.written_bytes)}"

    def wait(self, child: subprocess.Popen[bytes]) -> str:
        """Wait for the end of ``child``; return why it must not go on, empty when it has ended by itself."""
        # It has ended by now, or is in a sandbox already, which limits its files itself.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        deadline = time.monotonic() + self.seconds
        while not _ends_within(child, LOOK_EVERY):
            if time.monotonic() > deadline:
                return f"it took more than {self.seconds:.0f} s"
            if reason := self._excess(child.pid):
                return reason
        written = _written([child.pid])  # also of one that ended between two looks
        if child.wait() == -signal.SIGXFSZ:
            return self.too_large
        return self._too_much if written > self.written_bytes else ""

    def _excess(self, leader: int) -> str:
        family_now = family.members([leader])
        if self.processes is not None and len(family_now) > self.processes:
            return f"it had more than {self.processes} processes"
        if _written(family_now) > self.written_bytes:
            return self._too_much
        if self.memory_bytes is not None and _memory(family_now) > self.memory_bytes:
            return f"it took more than {_size(self.memory_bytes)} of memory"
        if _available() < self.left:
            return f"it left less than {self.left:.0%} of this machine's memory to others"
        return ""


DOWNLOAD = Limits()
BUILD = Limits(seconds=4 * MAX_SECONDS, memory_bytes=None)
"""Of what is built from an sdist before it is installed."""
IMAGE = Limits(file_bytes=8 * MAX_BYTES, written_bytes=32 * MAX_BYTES)


ENGINE = Limits(
    seconds=4 * MAX_SECONDS, file_bytes=8 * MAX_BYTES, written_bytes=32 * MAX_BYTES, memory_bytes=None
)
"""Of what docker, podman and buildah build, load, save and push themselves, not their daemon."""
STRANGER = Limits(seconds=1800.0, file_bytes=1 << 30, processes=4096, memory_bytes=None)
"""Of an image's program, whose sandbox limits its memory."""


def _ends_within(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process ends in this time. Until it is waited for, /proc has its numbers."""
    deadline = time.monotonic() + seconds
    while child.returncode is None:
        try:
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return True
        except ChildProcessError:  # another thread has waited for it
            return True
        if (left := deadline - time.monotonic()) <= 0:
            return False
        time.sleep(min(left, LONGEST_SLEEP))
    return True


def memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _available() -> float:
    """Return the part of the machine's memory that is available (proc_meminfo(5)), cached files included."""
    with Path("/proc/meminfo").open() as file:
        found = {name: int(value.split()[0]) for name, value in (line.split(":") for line in file)}
    return found["MemAvailable"] / found["MemTotal"]


def _written(processes: Iterable[int]) -> int:
    """Return the bytes that these processes wrote (proc_pid_io(5)).

    The kernel adds those of a process that has ended to its parent's.
    """
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended by now, or is another user's
            fields = Path(f"/proc/{process}/io").read_text().split()
            total += int(fields[fields.index("wchar:") + 1])
    return total


def _memory(processes: Iterable[int]) -> int:
    """Return the bytes of memory that these processes have alone (proc_pid_statm(5))."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended by now
            resident, shared = map(int, Path(f"/proc/{process}/statm").read_text().split()[1:3])
            total += resident - shared
    return total * os.sysconf("SC_PAGE_SIZE")


def _size(number: int) -> str:
    return f"{number / 2**30:g} GiB" if number >= 1 << 30 else f"{number} bytes"
