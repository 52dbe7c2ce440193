"""Code for NVIDIA's GPUs in an ELF file: which GPUs a CUDA extension has cubins for, and what else.

nvcc puts "fat binaries" into sections of their own. Each is a header, then entries: a cubin (machine code for
one GPU), PTX (which the driver compiles for a newer GPU) or the intermediate code of link-time optimization.
NVIDIA does not document the entries. The places below were read from files of nvcc 13.5, and the results
compared with those of its cuobjdump.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from armbuild.audit.elf import Elf, Section

SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin"})  # linked whole, or of -rdc=true
MAGIC = b"\x50\xed\x55\xba"
HEADER, ENTRY = struct.Struct("<4sHHQ"), struct.Struct("<HHIQIIHHIIIQ")
"""Magic, version, size of the header, size of the entries; kind, -, size of the entry's header, of its code,
four that are not used here, number of the GPU's architecture, two of a name, flags."""
KINDS = {1: "ptx", 2: "cubin", 8: "lto"}
PREFIXES = {"ptx": "compute_", "cubin": "sm_", "lto": "lto_"}
ONE_GPU, FAMILY = 0x100000, 0x200000
"""Flags of code that runs on this architecture alone (sm_90a), and on its family (sm_100f)."""
MAX_ENTRIES = 1_000_000


@dataclass(frozen=True, kw_only=True, order=True)
class GpuCode:
    """Code for one GPU: its kind, its target as nvcc calls it (sm_90, compute_121), and how many pieces."""

    kind: str
    target: str
    count: int


def read(path: Path, elf: Elf) -> tuple[tuple[GpuCode, ...], list[str]]:
    """Return the code for GPUs in ``path``, and what is wrong with it; the count ends behind MAX_ENTRIES."""
    sections = [item for item in elf.sections if item.name in SECTIONS and item.size]
    if not sections:
        return (), []
    found: Counter[tuple[str, int, str]] = Counter()
    problems = []
    if sum(item.size for item in sections) > path.stat().st_size:
        return (), ["code for GPUs cannot be read: its sections overlap"]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for section in sections:
            try:
                found.update(_entries(content, section))
            except _Unreadable as error:
                problems.append(f"code for GPUs ({section.name}) cannot be read: {error}")
            if found.total() > MAX_ENTRIES:
                break
    return tuple(
        GpuCode(kind=kind, target=f"{PREFIXES.get(kind, '')}{number}{suffix}", count=count)
        for (kind, number, suffix), count in sorted(found.items())
    ), problems


class _Unreadable(Exception):  # noqa: N818 - becomes a warning of the report
    pass


def _entries(content: mmap.mmap, section: Section) -> Iterator[tuple[str, int, str]]:
    """Give kind, architecture and suffix of each entry; fat binaries of linked objects lie side by side."""
    place, end = section.offset, min(section.offset + section.size, len(content))
    seen = 0
    while (place := content.find(MAGIC, place, end)) >= 0:
        if place + HEADER.size > end:
            raise _Unreadable("it ends in a header")
        _, version, header, size = HEADER.unpack_from(content, place)
        if version != 1 or header < HEADER.size:
            raise _Unreadable(f"its version is {version}, and its header has {header} bytes")
        place, last = place + header, place + header + size
        if last > end:
            raise _Unreadable("it ends behind its section")
        while place < last:
            if place + ENTRY.size > last:
                raise _Unreadable("it ends in the header of a piece")
            kind, _, header, size, _, _, _, _, number, _, _, flags = ENTRY.unpack_from(content, place)
            if header < ENTRY.size or place + header + size > last:
                raise _Unreadable("a piece ends behind the others' end")
            suffix = "a" if flags & ONE_GPU else "f" if flags & FAMILY else ""
            yield KINDS.get(kind, "other"), number, suffix
            seen += 1
            if seen > MAX_ENTRIES:
                return
            place += header + size
    if not seen:
        raise _Unreadable("nothing in it begins like such code")
