"""Find out what the CPU under this process can do."""

from __future__ import annotations

import math
import platform
import re
from pathlib import Path
from typing import Any

from armisa import cpuinfo, host
from armisa.errors import IsaError
from armisa.model import Isa, assemble, reconcile


def detect(root: Path = Path("/")) -> Isa:
    """Return the facts about this machine's CPU; raises IsaError on anything but AArch64 and x86-64 Linux.

    Reads the auxiliary vector, prctl, and /proc and /sys below ``root``; what is missing or contradictory is
    noted.
    """
    machine = host.machine()
    if machine not in ("aarch64", "x86_64"):
        raise IsaError(
            f"this machine is {machine}: armbuild knows AArch64 and x86-64 (--target NAME describes another)"
        )
    emulated = host.emulated(root)
    notes: list[str] = []
    content = host.text(root, "proc/cpuinfo")
    info = _cpuinfo(content, machine, notes)
    features = info.features if info else frozenset()
    if machine == "aarch64":
        capabilities = host.hwcaps()
        if capabilities["hwcap"] is None:
            notes.append("the C library has no getauxval: features are /proc/cpuinfo's")
        features, disagreement = reconcile(features, capabilities)
        notes.extend(disagreement)
    return assemble(
        machine=machine,
        midrs=_midrs(root, info, notes) if machine == "aarch64" else (),
        features=features,
        capacities=host.capacities(root, host.online(root)),
        model=host.text(root, "proc/device-tree/model") or (info.model if info else None),
        vendor=host.text(root, "sys/class/dmi/id/sys_vendor"),
        **_measured(root, machine, features, emulated=emulated, notes=notes),
    )


def _cpuinfo(content: str | None, machine: str, notes: list[str]) -> cpuinfo.CpuInfo | None:
    try:
        info = cpuinfo.parse(content or "")
    except IsaError as error:
        notes.append(f"/proc/cpuinfo is of no use here: {error}")
        return None
    if info.machine != machine:
        notes.append(f"/proc/cpuinfo describes another machine ({info.machine}): not used")
        return None
    notes.extend(info.notes)
    return info


def _midrs(root: Path, info: cpuinfo.CpuInfo | None, notes: list[str]) -> tuple[int, ...]:
    listed = info.midrs if info else ()
    registers = host.midrs(root, host.online(root))
    if not registers:
        notes.append(
            "no MIDR_EL1 in sysfs: cores are /proc/cpuinfo's" if listed else "no source names the cores"
        )
        return listed
    if listed and set(registers) != set(listed):
        notes.append("sysfs and /proc/cpuinfo name different cores: sysfs is used")
    return registers


def _measured(
    root: Path, machine: str, features: frozenset[str], *, emulated: bool, notes: list[str]
) -> dict[str, Any]:
    nodes = host.numa_nodes(root)
    if not nodes:
        notes.append("no NUMA information in sysfs: one node assumed")
    if emulated:
        notes.append("an emulator runs this process: its CPU is what is described, and nothing here is fast")
    version = platform.release()
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < (5, 10) and machine == "aarch64":
        # AWS, "Getting started with Graviton": older kernels don't report bf16 and i8mm to programs.
        notes.append(f"Linux {version} is older than 5.10: BF16 and I8MM may be there without being reported")
    page = host.page_size()
    if page and page > 4096:
        notes.append(
            f"pages are {page >> 10} KiB: shared objects need such segments, which `armbuild audit` checks"
        )
    measured: dict[str, Any] = {
        "page_size": page,
        "numa_nodes": len(nodes) or 1,
        "emulated": emulated,
        "kernel_version": version,
        "memory_bytes": host.memory_limit(root),
        **_threads(root, nodes, notes),
    }
    for unit in ("sve", "sme"):
        if unit in features:
            bits = host.vector_bits(unit)
            if bits:
                measured[f"{unit}_vector_bits"] = bits
            else:
                notes.append(f"prctl does not tell the {unit.upper()} vector length")
    measured["notes"] = tuple(notes)
    return measured


def _threads(root: Path, nodes: dict[int, tuple[int, ...]], notes: list[str]) -> dict[str, Any]:
    """Return the thread count to set and the CPUs to bind to: performance cores of one NUMA node."""
    cpus = host.online(root)
    allowed = host.affinity()
    quota = host.cpu_quota(root)
    preferred = _performance(root, cpus)
    if nodes:
        first = max(nodes.values(), key=len)
        preferred = tuple(cpu for cpu in preferred if cpu in first) or preferred
    threads = host.physical_cores(root, preferred) if preferred else allowed or 1
    binding: str | None = host.ranges(preferred) if preferred else None
    if allowed and cpus and allowed < len(cpus):
        notes.append(f"this process may use {allowed} of {len(cpus)} CPUs")
        threads, binding = min(threads, allowed), None
    if quota is not None and quota < threads:
        notes.append(f"the container is limited to {quota:g} CPUs' worth of time")
        threads = max(1, math.floor(quota))
        binding = None
    return {"threads": threads, "binding": binding}


def _performance(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    registers = host.midrs(root, cpus)
    if not registers:
        return cpus
    isa = assemble(
        machine="aarch64",
        midrs=registers,
        features=frozenset(),
        capacities=host.capacities(root, cpus),
    )
    fast = {(core.implementer, core.part) for core in isa.cores if core.performance}
    return tuple(
        cpu
        for cpu, midr in zip(cpus, registers, strict=True)
        if (midr >> 24 & 0xFF, midr >> 4 & 0xFFF) in fast
    )
