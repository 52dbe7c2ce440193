"""What an ELF file's headers say: machine, segments, sections, needed libraries."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elftools.elf.enums import ENUM_E_MACHINE

from armbuild.artifact import elffile
from armbuild.artifact.archives import OF_THIS_MACHINE
from armisa.host import ELF_MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from elftools.elf.elffile import ELFFile

# A page of the largest size that AArch64 Linux uses.
LARGEST_PAGE = 0x10000
# No user-space address comes near; sums with one stay below 64 bits.
_END = 1 << 63
# Linux loads no program with more than 64 KiB of program headers (load_elf_phdrs). Objects of
# -ffunction-sections have a section or two for each function; above 65,279 they are counted elsewhere.
_MAX_SEGMENTS, _MAX_SECTIONS = 1170, 100_000
_WITHOUT_BYTES = ("SHT_NOBITS", "SHT_NULL")
# Sections have their own bytes; a tool that moves one may leave its old header.
_OVERLAP = 2


class BrokenElf(Exception):  # noqa: N818 - becomes an error of the report
    """The file begins like an ELF file, and its headers contradict it."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section's name, address, place in the file, size in bytes, and whether it is code."""

    name: str
    address: int
    offset: int
    size: int
    executable: bool
    type: str
    link: int


@dataclass(frozen=True, kw_only=True)
class Elf:
    """One ELF file's headers; ``machine`` in Linux's spelling.

    ``alignment``: the largest page size up to 64 KiB with which its segments can be loaded.
    """

    machine: str
    bits: int
    little_endian: bool
    type: str
    sections: tuple[Section, ...]
    code: tuple[tuple[int, int, int], ...]
    needed: tuple[str, ...]
    soname: str | None
    runpath: tuple[str, ...]
    alignment: int | None
    executable_stack: bool
    writable_code: bool
    relro: bool
    entry: int
    debug: tuple[str, ...]
    dynamic: bool

    def section(self, name: str) -> Section | None:
        """Return the first section of this name, or None."""
        return next((section for section in self.sections if section.name == name), None)


def read_elf(path: Path) -> Elf:
    """Return the headers of ``path``; raises BrokenElf when they can't be followed."""
    with broken_is_a_verdict(), path.open("rb") as file:
        return _read(elffile.opened(file), path.stat().st_size)


@contextmanager
def broken_is_a_verdict() -> Iterator[None]:
    """Make BrokenElf of what readers of ELF files raise, which may be anything."""
    try:
        yield
    except BrokenElf:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in OF_THIS_MACHINE:
            raise
        raise BrokenElf(f"broken ELF headers ({type(error).__name__}: {error})"[:200]) from error


def _read(elf: Any, size: int) -> Elf:
    header = elf.header
    machine = header["e_machine"]  # pyelftools' name of it, or the number that it has no name for
    if elf.num_sections() > _MAX_SECTIONS or elf.num_segments() > _MAX_SEGMENTS:
        raise BrokenElf("broken ELF headers (an implausible number of sections or segments)")
    sections = _sections(elf, size)
    if sum(section.size for section in sections if section.type not in _WITHOUT_BYTES) > _OVERLAP * size:
        raise BrokenElf("broken ELF headers (sections overlap)")
    segments = list(elf.iter_segments())
    if sum(segment["p_type"] == "PT_DYNAMIC" for segment in segments) > 1:
        raise BrokenElf("broken ELF headers (more than one dynamic segment)")
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    relro = [segment for segment in segments if segment["p_type"] == "PT_GNU_RELRO"]
    for segment in loads:
        if segment["p_vaddr"] + segment["p_memsz"] >= _END:
            raise BrokenElf("broken ELF headers (a segment ends behind the last address)")
        if segment["p_offset"] + segment["p_filesz"] > size:
            raise BrokenElf(
                f"truncated: a segment ends at byte {segment['p_offset'] + segment['p_filesz']} of {size}"
            )
    if sum(section.size for section in sections if section.executable) > size:
        raise BrokenElf("broken ELF headers (sections with code overlap)")
    if sum(segment["p_filesz"] for segment in loads if segment["p_flags"] & 1) > size:
        raise BrokenElf("broken ELF headers (segments with code overlap)")
    tags = _dynamic(segments)
    return Elf(
        machine=ELF_MACHINES.get(ENUM_E_MACHINE.get(machine, machine), str(machine)),
        bits=elf.elfclass,
        little_endian=elf.little_endian,
        type=str(header["e_type"]),
        sections=sections,
        code=tuple(
            (segment["p_vaddr"], segment["p_offset"], segment["p_filesz"])
            for segment in loads
            if segment["p_flags"] & 1
        ),
        needed=tuple(tags.get("DT_NEEDED", ())),
        soname=next(iter(tags.get("DT_SONAME", ())), None),
        runpath=tuple(
            part
            for name in ("DT_RPATH", "DT_RUNPATH")
            for value in tags.get(name, ())
            for part in value.split(":")
        ),
        alignment=_page_size(loads, relro),
        executable_stack=any(s["p_type"] == "PT_GNU_STACK" and s["p_flags"] & 1 for s in segments),
        writable_code=any(segment["p_flags"] & 3 == 3 for segment in loads),
        relro=bool(relro),
        entry=header["e_entry"],
        debug=tuple(s.name for s in sections if s.name.startswith((".debug_", ".zdebug_"))),
        dynamic=bool(tags),
    )


def _sections(elf: ELFFile, size: int) -> tuple[Section, ...]:
    found = []
    is_object = elf.header["e_type"] == "ET_REL"
    for header in elffile.section_headers(elf):
        offset, length = header.offset, header.size
        if header.type not in _WITHOUT_BYTES and offset + length > size:
            raise BrokenElf(f"truncated: section {header.name!r} ends at byte {offset + length} of {size}")
        if header.address + length >= _END:
            raise BrokenElf("broken ELF headers (a section ends behind the last address)")
        found.append(
            Section(
                name=header.name,
                # In an object file every section begins at 0; its place in the file tells them apart.
                address=offset if is_object else header.address,
                offset=offset,
                size=length,
                executable=bool(header.flags & 4) and header.type != "SHT_NOBITS",
                type=header.type,
                link=header.link,
            )
        )
    return tuple(found)


def _dynamic(segments: list[Any]) -> dict[str, list[Any]]:
    tags: dict[str, list[Any]] = {}
    for segment in segments:
        if segment["p_type"] != "PT_DYNAMIC":
            continue
        for count, tag in enumerate(segment.iter_tags()):
            if count > 4096:
                raise BrokenElf("broken ELF headers (the dynamic section does not end)")
            name = str(tag.entry.d_tag)
            value = {
                "DT_NEEDED": "needed",
                "DT_SONAME": "soname",
                "DT_RPATH": "rpath",
                "DT_RUNPATH": "runpath",
            }.get(name)
            tags.setdefault(name, []).append(getattr(tag, value) if value else tag.entry.d_val)
    return tags


def _page_size(loads: list[Any], relro: list[Any]) -> int | None:
    """Return the largest page size up to 64 KiB with which the segments can be loaded; None without any.

    A loader maps them in order and in whole pages. So on a page that two of them touch, the later one decides
    about rights and content. What becomes read-only after relocation begins with a whole page, too.
    """
    if not loads:
        return None
    size = min(map(_alignment, loads))
    ordered = sorted(loads, key=lambda segment: segment["p_vaddr"])
    for before, after in itertools.pairwise(ordered):
        loses = (
            before["p_flags"] & ~after["p_flags"]
            or before["p_memsz"] > before["p_filesz"]
            or before["p_vaddr"] - before["p_offset"] != after["p_vaddr"] - after["p_offset"]
        )
        if loses and before["p_memsz"] and after["p_memsz"]:
            size = _apart(before["p_vaddr"] + before["p_memsz"], after["p_vaddr"], size)
    for fixed in relro:
        start = fixed["p_vaddr"]
        for segment in ordered:
            if segment["p_flags"] & 2 and segment["p_vaddr"] < start:
                size = _apart(min(segment["p_vaddr"] + segment["p_memsz"], start), start, size)
    return size


def _apart(end: int, start: int, size: int) -> int:
    """Return the largest page size up to ``size`` with which what ends at ``end`` is not on start's page."""
    while size > 1 and start // size * size < end:
        size //= 2
    return size


def _alignment(segment: Any) -> int:
    """Return the largest page size up to 64 KiB that this segment can be mapped with."""
    alignment = max(int(segment["p_align"]), 1)
    shift = (segment["p_vaddr"] - segment["p_offset"]) % LARGEST_PAGE
    if shift:
        alignment = min(alignment, shift & -shift)
    return alignment
