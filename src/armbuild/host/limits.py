"""Limits for programs that download and unpack: the time, and the bytes that all their processes write."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from armbuild.host import family
from armbuild.host.download import MAX_BYTES, MAX_SECONDS

LOOK_EVERY = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a program may use until it is ended."""

    seconds: float = MAX_SECONDS
    file_bytes: int = MAX_BYTES
    """Of one file."""
    written_bytes: int = 4 * MAX_BYTES
    """Of all files: what was downloaded, and what came out of it."""

    def wait(self, child: subprocess.Popen[bytes]) -> str:
        """Wait for the end of ``child``; return why it must not go on, empty when it has ended by itself."""
        with contextlib.suppress(ProcessLookupError):  # it has ended by now
            resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))
        deadline = time.monotonic() + self.seconds
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = child.wait(timeout=LOOK_EVERY)
                too_large = status == -signal.SIGXFSZ
                return f"a file of more than {_size(self.file_bytes)}" if too_large else ""
            if time.monotonic() > deadline:
                return f"it took more than {self.seconds:.0f} s"
            if _written(child.pid) > self.written_bytes:
                return f"it wrote more than {_size(self.written_bytes)}"


DOWNLOAD = Limits()
BUILD = Limits(seconds=4 * MAX_SECONDS)
"""Of what is built from an sdist before it is installed."""
IMAGE = Limits(file_bytes=8 * MAX_BYTES, written_bytes=32 * MAX_BYTES)


def _written(leader: int) -> int:
    """Return the bytes that a process and its descendants wrote (proc_pid_io(5)).

    The kernel adds those of a process that has ended to its parent's.
    """
    total = 0
    for process in family.members([leader]):
        with contextlib.suppress(OSError):  # it has ended by now, or is another user's
            fields = Path(f"/proc/{process}/io").read_text().split()
            total += int(fields[fields.index("wchar:") + 1])
    return total


def _size(number: int) -> str:
    return f"{number / 2**30:g} GiB" if number >= 1 << 30 else f"{number} bytes"
