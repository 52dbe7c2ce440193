"""Faults of one ELF file: unloadable on some machines, unsafe, or needlessly large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from armbuild.audit.elf import LARGEST_PAGE
from armbuild.audit.instructions import CHUNK

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.audit.elf import Elf

# What armllm's own wheel must neither hold nor ask for: they come with torch, or not at all.
_FOREIGN = ("libgomp", "libtorch", "libc10", "libstdc++", "libomp")


_PACIASP = 0xD503233F


def check_hygiene(name: str, path: Path, elf: Elf, *, own: bool) -> tuple[list[str], list[str]]:
    """Return errors and warnings about the file ``name``; armllm's ``own`` wheel is held to more."""
    errors: list[str] = []
    warnings: list[str] = []
    stricter = errors if own else warnings
    if elf.machine == "aarch64" and elf.alignment is not None and elf.alignment < LARGEST_PAGE:
        errors.append(
            f"{name}: segments aligned to {elf.alignment:#x} can't be loaded where pages are 64 KiB"
            " (link with -z max-page-size=0x10000)"
        )
    if elf.executable_stack:
        errors.append(f"{name}: asks for an executable stack")
    if elf.writable_code:
        errors.append(f"{name}: has a segment that is both writable and executable")
    if elf.debug:
        stricter.append(f"{name}: debug information is not stripped")
    if elf.dynamic and not elf.relro:
        warnings.append(f"{name}: no RELRO, its relocated data stays writable")
    stricter.extend(
        f"{name}: RPATH {entry!r} is a place of the build machine"
        for entry in elf.runpath
        if entry and not entry.startswith(("$ORIGIN", "${ORIGIN}"))
    )
    if own and elf.machine == "aarch64":
        errors.extend(
            f"{name}: functions in {section} do not sign their return addresses"
            " (compile with -mbranch-protection=pac-ret)"
            for section in _unsigned(path, elf)
        )
    foreign = (*elf.needed, name.rpartition("/")[2]) if own else ()
    errors.extend(
        f"{name}: {library} must be neither inside nor linked"
        for library in foreign
        if library.startswith(_FOREIGN)
    )
    return errors, warnings


def _unsigned(path: Path, elf: Elf) -> list[str]:
    """Return the sections of code where functions save return addresses, and none signs its own.

    In .text the linker puts functions of zig's C++ runtime beside ours, and those don't sign.
    """
    unsigned = []
    with path.open("rb") as file:
        for section in elf.sections:
            if not section.executable or not section.name.startswith((".text", "armllm.")):
                continue
            file.seek(section.offset)
            saves = signs = False
            for start in range(0, section.size // 4 * 4, 4 * CHUNK):
                size = min(4 * CHUNK, section.size // 4 * 4 - start)
                instructions = np.frombuffer(file.read(size), "<u4")
                # STP and STR to the stack, of X30 (Arm ARM, C4.1.96)
                pair = instructions & 0xFC4003E0 == 0xA80003E0
                pair &= (instructions >> 10 & 31 == 30) | (instructions & 31 == 30)
                single = (instructions & 0xFFC003FF == 0xF90003FE) | (instructions & 0xFFE00FFF == 0xF8000FFE)
                saves |= bool((pair | single).any())
                signs |= bool((instructions == _PACIASP).any())
            if saves and not signs:
                unsigned.append(section.name)
    return unsigned
