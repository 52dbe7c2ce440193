"""The image's entry point: `docker run IMAGE MODEL ...` starts `armllm serve MODEL ...`.

The standard library alone runs until the core is known to be good enough: torch's code would die of SIGILL on
an older one, without a word. What the container may use is printed; by it the engine chooses CPUs and the
size of the KV cache, and says so when it serves. The server takes over this very process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from armisa import Isa, detect, host

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARE = "usr/local/share/armllm"
FACTS = f"{SHARE}/image.json"
"""What the image's builder knows about it: version, floor, kernels."""
SBOM = f"{SHARE}/sbom.cdx.json"
GIB = 1 << 30
LEAST_MEMORY = GIB // 2
"""In bytes. With less, the kernel kills the process without a word while torch is imported."""
MISUSED, TOO_LITTLE = 2, 3


def main(arguments: list[str], root: Path = Path("/")) -> int:
    """Check the core, say in five lines what was found, and serve; return the exit status."""
    # As PID 1 without a handler, a process never sees SIGTERM; the server's own handlers replace this one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        facts = json.loads((root / FACTS).read_text())
    except (OSError, ValueError) as error:
        print(f"armllm: error: /{FACTS}: {error}: outside of its image, use `armllm serve`", file=sys.stderr)
        return MISUSED
    isa = detect(root)
    if reason := refusal(facts, isa):
        print(f"armllm: error: {reason}", file=sys.stderr)
        return TOO_LITTLE
    if isa.threads and os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto") == "auto":
        os.environ.setdefault("OMP_NUM_THREADS", str(isa.threads))  # for every thread that computes
    command = ["serve", *with_host(with_model(arguments, os.environ))]
    for line in report(facts, isa, command, root):
        print(line, file=sys.stderr, flush=True)
    if isa.memory_bytes and isa.memory_bytes < LEAST_MEMORY:
        print(
            f"armllm: error: {isa.memory_bytes >> 20} MiB of memory are too little: torch and the engine need"
            f" {LEAST_MEMORY >> 20} MiB before any weights are loaded",
            file=sys.stderr,
        )
        return TOO_LITTLE

    from armllm.cli import main as armllm  # noqa: PLC0415 - whatever brings torch comes after the check

    return armllm(command)


def refusal(facts: Mapping[str, Any], isa: Isa) -> str:
    """Return in a sentence why this core cannot run the image's code; empty when it can, or nobody knows."""
    missing = sorted(set(facts["floor"]["features"]) - isa.features)
    if not missing or not isa.features or isa.machine != facts["machine"]:
        return ""
    core = next((core.label for core in isa.cores), "this core")
    level = facts["floor"]["lowest_core"]
    return (
        f"this image needs a core of {level}: {core} lacks {', '.join(missing)}, and its code would be killed"
        " by an illegal instruction"
    )


def report(facts: Mapping[str, Any], isa: Isa, command: list[str], root: Path) -> list[str]:
    """Return what was found, in five lines."""
    cores = ", ".join(f"{core.count} {core.label}" for core in isa.cores) or platform.machine()
    floor = ", ".join(facts["floor"]["features"]) or "nothing beyond the first 64-bit cores"
    cgroup = f"cgroup v{2 if (root / 'sys/fs/cgroup/cgroup.controllers').exists() else 1}"
    quota = host.cpu_quota(root)
    time = f"{quota:g} CPUs' worth of time by {cgroup}" if quota else "no limit of time"
    nodes = f"{isa.numa_nodes} NUMA node{'s' * (isa.numa_nodes != 1)}"
    user = f"{os.getuid()}:{os.getgid()}"
    there = "there" if set(facts["floor"]["features"]) <= isa.features else "this machine does not tell"
    return [
        f"armllm {facts['version']}, torch {facts['torch']}, on {cores}; needs {floor}: {there}",
        f"  CPUs: {host.affinity()} of {len(host.online(root)) or os.cpu_count()} usable, {time}, {nodes}",
        f"  memory: {_memory(isa, root, cgroup)}",
        f"  process {os.getpid()}, user {user}, root file system {_root_state(root)}, {_allocator(root)}",
        f"  armllm {shlex.join(command)}",
    ]


def _memory(isa: Isa, root: Path, cgroup: str) -> str:
    total = re.search(r"^MemTotal:\s*(\d+)", host.text(root, "proc/meminfo") or "", re.MULTILINE)
    machine = int(total[1]) << 10 if total else 0
    limit = isa.memory_bytes or machine
    if limit >= machine:
        return f"{_size(machine)} GiB, no limit"
    return f"{_size(limit)} of {_size(machine)} GiB by {cgroup}"


def _size(amount: int) -> str:
    return f"{round(amount / GIB, 2):g}"


def _root_state(root: Path) -> str:
    if os.statvfs(root).f_flag & os.ST_RDONLY:
        return "read-only"
    return "writable" if os.access(root, os.W_OK) else "not mounted read-only"


def _allocator(root: Path) -> str:
    maps = host.text(root, "proc/self/maps") or ""
    return "tcmalloc" if "libtcmalloc" in maps else "the C library's malloc"


def with_model(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the server's arguments, with the image's own model in front when they name none.

    MODEL is the first argument or follows ``--model``.
    """
    own = environment.get("ARMLLM_MODEL", "")
    names_one = arguments[:1] and not arguments[0].startswith("-")
    if names_one or not own or any(re.match(r"--model(?:=|$)", word) for word in arguments):
        return arguments
    return [own, *arguments]


def with_host(arguments: list[str]) -> list[str]:
    """Return the server's arguments, with all of the container's addresses when they name none.

    What of them the outside reaches is the container engine's business.
    """
    if any(re.match(r"--(?:host|uds)(?:=|$)", word) for word in arguments):
        return arguments
    return [*arguments, "--host", "0.0.0.0"]  # noqa: S104


def _stop(number: int, _frame: object) -> NoReturn:
    with suppress(OSError):
        os.write(2, b"armllm: stopped before it served\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
