"""What the code of one ELF file needs, function by function."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from armbuild.audit import functions as bounds
from armbuild.audit import startup
from armbuild.audit.elf import Section
from armbuild.audit.instructions import UNDEFINED, classify, needs_of_row, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from armbuild.audit.elf import Elf

# compiler-rt and libgcc: each helper checks for LSE itself before it uses one of its instructions.
_OUTLINE_ATOMICS = re.compile(r"__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)\d+_(relax|acq|rel|acq_rel|sync)")
_STG = 0xD9200800


@dataclass(frozen=True, kw_only=True)
class Use:
    """Instructions of one row of the table in one function: how many, the first one's address and word."""

    row: int
    count: int
    address: int
    word: int

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that these instructions need."""
        return needs_of_row(self.row)

    @property
    def instructions(self) -> str:
        """The names of the instructions that the row stands for."""
        return table()[self.row].instructions


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that needs more than Armv8.0-A.

    ``needs`` are extensions; ``doubt`` says why its words may be data, None when they are code; ``starts_up`` whether
    loading the file runs one of the instructions for certain.
    """

    name: str
    section: str
    address: int
    uses: tuple[Use, ...]
    needs: frozenset[str]
    doubt: str | None = None
    starts_up: bool = False


@dataclass(kw_only=True)
class Code:
    """The code of one ELF file: what it needs, and how many instructions and functions were looked at."""

    functions: list[Function] = field(default_factory=list)
    words: int = 0
    known_functions: int = 0
    self_checked: int = 0


def scan(path: Path, elf: Elf) -> Code:
    """Return what the code of the little-endian AArch64 file ``path`` needs; streams through a memory map."""
    code = Code()
    if path.stat().st_size == 0:
        return code
    data = np.memmap(path, np.uint8, "r")
    known = bounds.functions(data, elf)
    code.known_functions = len(known.start)
    certain = startup.certain_words(data, elf, known)
    for section in _code_sections(elf):
        _scan_section(code, data, elf, section, known, certain)
    code.functions.sort(key=lambda function: function.address)
    return code


def _code_sections(elf: Elf) -> Iterator[Section]:
    found = [section for section in elf.sections if section.executable and section.size]
    if found:
        yield from found
        return
    for address, offset, size in elf.code:
        yield Section(
            name=f"segment at {address:#x}",
            address=address,
            offset=offset,
            size=size,
            executable=True,
            type="SHT_PROGBITS",
            link=0,
        )


def _scan_section(
    code: Code,
    data: npt.NDArray[np.uint8],
    elf: Elf,
    section: Section,
    known: bounds.Functions,
    certain: npt.NDArray[np.uint64],
) -> None:
    skip = -section.address % 4
    count = max(section.size - skip, 0) // 4
    begin = section.offset + skip
    words = np.frombuffer(data[begin : begin + count * 4], "<u4")
    code.words += count
    rows = classify(words)
    base = np.uint64(section.address + skip)
    marks = bounds.mapping(data, elf, section)
    needing = np.array([bool(needs_of_row(index)) for index in range(len(table()))])
    hits = np.flatnonzero(rows)
    undefined = hits[(rows[hits] == UNDEFINED) & (words[hits] != 0)]
    hits = hits[rows[hits] != UNDEFINED]
    hits = hits[needing[rows[hits]]]
    if marks is not None:
        hits = hits[marks.is_code(base + hits.astype(np.uint64) * np.uint64(4))]
    elif len(hits):
        hits = hits[~np.isin(hits, bounds.literals(words))]
    if not len(hits):
        return
    address = base + hits.astype(np.uint64) * np.uint64(4)
    owner = known.find(address)
    helpers = _outline_atomics(words, hits, rows)
    names: dict[int, str] = {}
    broken = set(np.unique(known.find(base + undefined.astype(np.uint64) * np.uint64(4))).tolist())
    # Group by function, then by row: one Use for each pair.
    order = np.lexsort((hits, rows[hits], owner))
    hits, owner, address, helpers = hits[order], owner[order], address[order], helpers[order]
    kept = ~helpers
    code.self_checked += int(helpers.sum())
    hits, owner, address = hits[kept], owner[kept], address[kept]
    row = rows[hits]
    new = np.flatnonzero((np.diff(owner, prepend=-2) != 0) | (np.diff(row.astype(np.int64), prepend=-2) != 0))
    uses: dict[int, list[Use]] = {}
    for start, end in zip(new, np.append(new[1:], len(hits)), strict=True) if len(new) else ():
        uses.setdefault(int(owner[start]), []).append(
            Use(
                row=int(row[start]),
                count=int(end - start),
                address=int(address[start]),
                word=int(words[hits[start]]),
            )
        )
    lasts = {
        int(index): int(address[owner == index].max()) for index in uses if index >= 0 and known.size[index]
    }
    on_start = set(owner[np.isin(address, certain)].tolist())
    for index, found in uses.items():
        names[index] = known.label(index)
        if _OUTLINE_ATOMICS.fullmatch(names[index]) or _retags_a_frame(found):
            code.self_checked += sum(use.count for use in found)
            continue
        needs = frozenset[str]().union(*(use.extensions for use in found))
        code.functions.append(
            Function(
                name=names[index],
                section=section.name,
                address=int(known.start[index]) if index >= 0 else found[0].address,
                uses=tuple(sorted(found, key=lambda use: use.address)),
                needs=_streaming(needs),
                doubt=None if marks is not None else _doubt(index, known, lasts.get(index), index in broken),
                starts_up=index in on_start,
            )
        )


def _doubt(index: int, known: bounds.Functions, last: int | None, broken: bool) -> str | None:
    """Return why words of this function may be data, in a file without mapping symbols."""
    if index < 0:
        return "outside of any function" if len(known.start) else None
    if last is not None and last >= int(known.start[index]) + int(known.size[index]):
        return "behind the function's end"
    if broken:
        return "between words that are no instructions"
    return None


def _streaming(needs: frozenset[str]) -> frozenset[str]:
    """Return the needs of a function that switches to streaming mode: SME brings its own SVE (Arm ARM, B1.4.6)."""
    if any(name.startswith(("sme", "ssve")) for name in needs):
        needs -= {"sve", "sve2", "sve-bf16", "sve-i8mm"}
        if "sve2p1" in needs:
            needs = needs - {"sve2p1"} | {"sme2"}
    return needs


def _retags_a_frame(uses: list[Use]) -> bool:
    """Return whether a function's one use is ``stg xN, [xN]``: LLVM's unwinder, which wipes the tags of a frame.

    It does so only for frames whose unwind table says that they were tagged ("G"), so on cores that have tags.
    """
    register = uses[0].word & 0x1F
    return (
        len(uses) == 1
        and uses[0].count == 1
        and register != 31  # the stack pointer: code compiled for stack tagging
        and uses[0].word == _STG | register << 5 | register
    )


def _outline_atomics(
    words: npt.NDArray[np.uint32], hits: npt.NDArray[Any], rows: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """Return which hits are the LSE instruction of an outline-atomics helper whose name was stripped.

    Such a helper is ``ldrb w16, [x16, #n]; cbz w16, ...`` and then the instruction, in libgcc and compiler-rt alike.
    """
    lse = np.array([needs_of_row(index) == {"lse"} for index in range(len(table()))])
    result = np.zeros(len(hits), np.bool_)
    some = np.flatnonzero((hits >= 2) & lse[rows[hits]])
    place = hits[some]
    load = (words[place - 2] & np.uint32(0xFFC003FF)) == np.uint32(0x39400210)
    branch = (words[place - 1] & np.uint32(0xFF00001F)) == np.uint32(0x34000010)
    result[some] = load & branch
    return result
