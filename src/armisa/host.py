"""What this machine says about itself: auxiliary vector, prctl, /proc, /sys. Each may be missing."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# Entries of the auxiliary vector: Linux, include/uapi/linux/auxvec.h
AUXV = {"hwcap": 16, "hwcap2": 26, "hwcap3": 29}
# Linux, include/uapi/linux/prctl.h: PR_SVE_GET_VL, PR_SME_GET_VL and the mask of the length in bytes
_PRCTL = {"sve": 51, "sme": 64}
_LENGTH_MASK = 0xFFFF
ELF_MACHINES = {
    3: "i686",
    8: "mips",
    20: "ppc",
    21: "ppc64le",
    22: "s390x",
    40: "armv7l",
    62: "x86_64",
    183: "aarch64",
    243: "riscv64",
    258: "loongarch64",
}
"""e_machine of an ELF header (System V ABI) -> the machine as Linux names it."""


def machine() -> str:
    """Return the machine type of this process as Linux names it ("aarch64", "x86_64", ...)."""
    return platform.machine()


def hwcaps() -> dict[str, int | None]:
    """Return the auxiliary vector's capability words; None for one that the C library can't give."""
    capabilities: dict[str, int | None] = dict.fromkeys(AUXV)
    try:
        getauxval = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError):
        return capabilities
    getauxval.restype, getauxval.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    for name, number in AUXV.items():
        capabilities[name] = int(getauxval(number))
    if not capabilities["hwcap"]:
        return dict.fromkeys(AUXV)
    return capabilities


def vector_bits(unit: str) -> int | None:
    """Return this process's vector length in bits of "sve" or "sme", None without the unit."""
    try:
        prctl = ctypes.CDLL(None).prctl
    except (AttributeError, OSError):
        return None
    zero = ctypes.c_ulong(0)
    length = int(prctl(_PRCTL[unit], zero, zero, zero, zero))
    return (length & _LENGTH_MASK) * 8 if length > 0 else None


def text(root: Path, path: str) -> str | None:
    """Return the stripped content of a small file below ``root``, None when it can't be read."""
    try:
        with (root / path).open("rb") as file:
            return file.read(16 << 20).decode("utf-8", "replace").strip("\0 \n\t")
    except OSError:
        return None


def number(root: Path, path: str) -> int | None:
    """Return the decimal or 0x number in a file below ``root``, None when there is none."""
    content = text(root, path)
    with suppress(ValueError):
        return int(content, 0) if content else None
    return None


def cpu_list(content: str | None) -> tuple[int, ...]:
    """Return the CPUs of a kernel list such as ``0-3,8``; empty when it is missing or unreadable."""
    cpus: list[int] = []
    for part in (content or "").split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if match:
            first = int(match[1])
            cpus.extend(range(first, int(match[2] or first) + 1))
    return tuple(cpus)


def ranges(cpus: Iterable[int]) -> str:
    """Return CPUs as a kernel list: 0, 1, 2 and 5 are ``0-2,5``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)


def online(root: Path) -> tuple[int, ...]:
    """Return the CPUs that are online; empty without sysfs."""
    return cpu_list(text(root, "sys/devices/system/cpu/online"))


def midrs(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Return MIDR_EL1 of each CPU from sysfs; empty unless every CPU has one."""
    path = "sys/devices/system/cpu/cpu{}/regs/identification/midr_el1"
    values = [number(root, path.format(cpu)) for cpu in cpus]
    return tuple(value & 0xFFFFFFFF for value in values if value is not None) if None not in values else ()


def capacities(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Return the scheduler's relative capacity of each CPU; empty unless every CPU has one."""
    values = [number(root, f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity") for cpu in cpus]
    return tuple(value for value in values if value is not None) if None not in values else ()


def physical_cores(root: Path, cpus: tuple[int, ...]) -> int:
    """Return how many physical cores ``cpus`` are on: hardware threads of one core share its vector units."""
    siblings = {
        text(root, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
        for cpu in cpus
    }
    return len(siblings)


def numa_nodes(root: Path) -> dict[int, tuple[int, ...]]:
    """Return the CPUs of each NUMA node that has any; empty without sysfs."""
    nodes = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        cpus = cpu_list(text(folder, "cpulist"))
        if cpus and folder.name[4:].isdecimal():
            nodes[int(folder.name[4:])] = cpus
    return dict(sorted(nodes.items()))


def cpu_quota(root: Path) -> float | None:
    """Return the number of CPUs' worth of time that the control group allows, None without a limit."""
    limits = []
    for folder in _control_groups(root):
        match = re.match(r"(\d+) (\d+)", text(folder, "cpu.max") or "")
        quota, period = (int(match[1]), int(match[2])) if match else (0, 0)
        if not match:
            quota = number(folder, "cpu.cfs_quota_us") or 0
            period = number(folder, "cpu.cfs_period_us") or 0
        if quota > 0 and period > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(root: Path) -> int | None:
    """Return the bytes of memory that this process may use: the machine's, or its control group's limit."""
    limits = []
    match = re.search(r"^MemTotal:\s*(\d+) kB", text(root, "proc/meminfo") or "", re.MULTILINE)
    if match:
        limits.append(int(match[1]) << 10)
    for folder in _control_groups(root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limit = number(folder, name)
            if limit is not None and 0 < limit < 1 << 60:  # version 1 writes a huge number for "no limit"
                limits.append(limit)
    return min(limits, default=None)


def _control_groups(root: Path) -> list[Path]:
    """Return the folders of this process's control groups and of their parents, both versions."""
    base = root / "sys/fs/cgroup"
    folders = [base, base / "cpu", base / "cpu,cpuacct", base / "memory"]
    for line in (text(root, "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = path.strip("/")
        while relative and ".." not in relative.split("/"):
            folders.append(base / controllers / relative)
            relative = relative.rpartition("/")[0]
    return [folder for folder in folders if folder.is_dir()]


def emulated(root: Path) -> bool:
    """Return whether a user-mode emulator runs this process: the running program is then another machine's.

    QEMU answers for /proc/self/exe itself, but not for /proc/thread-self/exe.
    """
    try:
        with (root / "proc/thread-self/exe").open("rb") as file:
            header = file.read(20)
    except OSError:
        return False
    program = ELF_MACHINES.get(int.from_bytes(header[18:20], "little")) if header[:4] == b"\x7fELF" else None
    return program is not None and program != machine()


def affinity() -> int | None:
    """Return how many CPUs this process may run on, None where the system doesn't tell."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return None


def page_size() -> int | None:
    """Return the page size of this process in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None
