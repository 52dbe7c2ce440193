"""A replica of `armllm serve --data-parallel-size`: `python -m …replica_process PARENT CPUS ARGUMENTS…`.

CPUS are numbers with commas, or - for all. The rest are arguments of `armllm`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, cpus: str, arguments: list[str]) -> None:
    """Stay on these CPUs, serve, and end with the parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        sys.exit(128 + signal.SIGKILL)
    if cpus != "-":
        os.sched_setaffinity(0, map(int, cpus.split(",")))
    sys.argv[1:] = arguments
    runpy.run_module("armllm", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
