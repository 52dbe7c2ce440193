"""What the code of one ELF file needs, function by function."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from armbuild.audit import functions as bounds
from armbuild.audit import startup
from armbuild.audit.disassembly import disassemble
from armbuild.audit.elf import BrokenElf, Section
from armbuild.audit.instructions import UNDEFINED, classify, needs_of_row, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from armbuild.audit.elf import Elf

# compiler-rt and libgcc: each helper checks for LSE itself before it uses one of its instructions.
_OUTLINE_ATOMICS = re.compile(r"__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)\d+_(relax|acq|rel|acq_rel|sync)")
_STG = 0xD9200800
# libgcc, unwind-dw2.c: the register VG counts doublewords in a vector, and is read when a frame saved it.
_UNWINDER = re.compile(r"execute_stack_op|execute_cfa_program(_\w+)?|uw_\w+|_Unwind_[GS]etGR")
_CNTD = 0x04E0E3E0
MAX_USES = 300_000
"""Of extensions by functions, in all files; torch 2.10's libtorch_cpu.so, the largest known, has 69,961."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Instructions of one row of the table in one function.

    How many, the first one's address and word, the last one's address, and whether loading the file runs
    one of them for certain.
    """

    row: int
    count: int
    address: int
    last: int
    word: int
    certain: bool

    @property
    def extensions(self) -> frozenset[str]:
        """The extensions that these instructions need."""
        return needs_of_row(self.row)

    @property
    def text(self) -> str:
        """The first one's mnemonic and operands."""
        return disassemble(self.word, self.address, table()[self.row].instructions)


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function that needs more than Armv8.0-A.

    ``needs`` are extensions; ``doubt`` says why its words may be data, None when they are code;
    ``at_load`` are the needs of instructions that loading the file runs for certain.
    """

    name: str
    section: str
    address: int
    uses: tuple[Use, ...]
    needs: frozenset[str]
    doubt: str | None = None
    at_load: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class Code:
    """The code of one ELF file: what it needs, and how many instructions and functions were looked at."""

    functions: list[Function] = field(default_factory=list)
    words: int = 0
    known_functions: int = 0
    self_checked: int = 0


def scan(path: Path, elf: Elf) -> Code:
    """Return what the code of the little-endian AArch64 file ``path`` needs; streams through a memory map."""
    scanner = _Scanner(np.memmap(path, np.uint8, "r"), elf)
    for number, section in _code_sections(elf):
        scanner.section(section, scanner.marks.get(number))
    scanner.code.functions.sort(key=lambda function: function.address)
    return scanner.code


def _code_sections(elf: Elf) -> Iterator[tuple[int, Section]]:
    """Yield what has code, and the number of each section; -1 for a segment of a file without sections."""
    found = [item for item in enumerate(elf.sections) if item[1].executable and item[1].size]
    if found:
        yield from found
        return
    for address, offset, size in elf.code:
        yield (
            -1,
            Section(
                name=f"segment at {address:#x}",
                address=address,
                offset=offset,
                size=size,
                executable=True,
                type="SHT_PROGBITS",
                link=0,
            ),
        )


class _Scanner:
    """Goes through a file's sections and gathers what their functions need."""

    def __init__(self, data: npt.NDArray[np.uint8], elf: Elf) -> None:
        self.data = data
        self.elf = elf
        self.known = bounds.find_functions(data, elf)
        self.marks = bounds.mappings(data, elf)
        self.certain = startup.certain_words(data, elf, self.known)
        self.uses = 0
        self.code = Code(known_functions=len(self.known.start))

    def section(self, section: Section, marks: bounds.Mapping | None) -> None:
        """Add the functions of one section; ``marks`` are its mapping symbols, None: it has none."""
        skip = -section.address % 4
        begin = section.offset + skip
        count = max(section.size - skip, 0) // 4
        base = section.address + skip
        words = np.frombuffer(self.data[begin : begin + count * 4], "<u4")
        self.code.words += count
        rows = classify(words)
        hits = np.flatnonzero(rows)
        undefined = hits[(rows[hits] == UNDEFINED) & (words[hits] != 0)]
        hits = hits[rows[hits] != UNDEFINED]
        hits = hits[_needing()[rows[hits]]]
        if not len(hits):
            return
        if marks is not None:
            hits = hits[marks.is_code(_addresses(base, hits))]
        else:
            hits = hits[~np.isin(hits, bounds.literals(words))]
        helpers = _outline_atomics(words, hits, rows)
        self.code.self_checked += int(helpers.sum())
        hits = hits[~helpers]
        if not len(hits):
            return
        broken = set(self.known.find(_addresses(base, undefined)).tolist()) if marks is None else set()
        for index, uses in self._uses(words, rows, hits, base).items():
            self._function(index, uses, section, stripped=marks is None, broken=index in broken)

    def _uses(
        self,
        words: npt.NDArray[np.uint32],
        rows: npt.NDArray[np.uint16],
        hits: npt.NDArray[Any],
        base: int,
    ) -> dict[int, list[Use]]:
        """Return for each function its uses, one for each row of the table."""
        owner = self.known.find(_addresses(base, hits))
        order = np.lexsort((hits, rows[hits], owner))
        hits, owner = hits[order], owner[order]
        row = rows[hits].astype(np.int64)
        new = np.flatnonzero((np.diff(owner, prepend=-2) != 0) | (np.diff(row, prepend=-2) != 0))
        if not len(new):
            return {}
        self.uses += len(new)
        if self.uses > MAX_USES:
            raise BrokenElf(f"more than {MAX_USES} uses of extensions: not read")
        last = np.append(new[1:], len(hits)) - 1
        certain = np.logical_or.reduceat(np.isin(_addresses(base, hits), self.certain), new)
        columns = (owner[new], row[new], last - new + 1, hits[new], hits[last], words[hits[new]], certain)
        found: dict[int, list[Use]] = {}
        for function, kind, count, first, final, word, runs in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            use = Use(
                row=kind,
                count=count,
                address=base + 4 * first,
                last=base + 4 * final,
                word=word,
                certain=runs,
            )
            found.setdefault(function, []).append(use)
        return found

    def _function(
        self, index: int, uses: list[Use], section: Section, *, stripped: bool, broken: bool
    ) -> None:
        name = self.known.label(index)
        if _OUTLINE_ATOMICS.fullmatch(name) or _retags_a_frame(uses) or _reads_a_frame(name, uses):
            self.code.self_checked += sum(use.count for use in uses)
            return
        last = max(use.last for use in uses)
        self.code.functions.append(
            Function(
                name=name,
                section=section.name,
                address=int(self.known.start[index]) if index >= 0 else uses[0].address,
                uses=tuple(sorted(uses, key=lambda use: use.address)),
                needs=_of_rows(frozenset(use.row for use in uses)),
                doubt=_doubt(index, self.known, last, broken=broken) if stripped else None,
                at_load=_of_rows(frozenset(use.row for use in uses if use.certain)),
            )
        )


def _addresses(base: int, words: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the addresses of the words with these indices."""
    addresses: npt.NDArray[np.uint64] = np.uint64(base) + words.astype(np.uint64) * np.uint64(4)
    return addresses


@functools.cache
def _needing() -> npt.NDArray[np.bool_]:
    """Return for each row of the table whether it needs anything."""
    return np.array([bool(row.extensions) for row in table()])


@functools.cache
def _needing_lse_alone() -> npt.NDArray[np.bool_]:
    """Return for each row of the table whether it needs LSE and nothing else."""
    return np.array([needs_of_row(index) == {"lse"} for index in range(len(table()))])


def _doubt(index: int, known: bounds.Functions, last: int, *, broken: bool) -> str | None:
    """Return why words of this function may be data, in a file without mapping symbols."""
    if index < 0:
        return "outside of any function" if len(known.start) else None
    if known.size[index] and last >= int(known.start[index]) + int(known.size[index]):
        return "behind the function's end"
    if broken:
        return "between words that are no instructions"
    return None


@functools.cache
def _of_rows(rows: frozenset[int]) -> frozenset[str]:
    """Return the needs of a function with instructions of these rows of the table."""
    return _streaming(frozenset[str]().union(*(needs_of_row(row) for row in rows)))


def _streaming(needs: frozenset[str]) -> frozenset[str]:
    """Return the needs of a function in streaming mode: SME brings its own SVE (Arm ARM, B1.4.6)."""
    if any(name.startswith(("sme", "ssve")) for name in needs):
        needs -= {"sve", "sve2", "sve-bf16", "sve-i8mm"}
        if "sve2p1" in needs:
            needs = needs - {"sve2p1"} | {"sme2"}
    return needs


def _retags_a_frame(uses: list[Use]) -> bool:
    """Return whether a function's one use is ``stg xN, [xN]``: LLVM's unwinder wipes a frame's tags so.

    It does so only for frames whose unwind table says that they were tagged ("G"), so on cores that have
    tags.
    """
    register = uses[0].word & 0x1F
    return (
        len(uses) == 1
        and uses[0].count == 1
        and register != 31  # the stack pointer: code compiled for stack tagging
        and uses[0].word == _STG | register << 5 | register
    )


def _reads_a_frame(name: str, uses: list[Use]) -> bool:
    """Return whether this is libgcc's unwinder, which asks for the vector length of frames with SVE state."""
    return bool(_UNWINDER.fullmatch(name)) and all(use.word & ~0x1F == _CNTD for use in uses)


def _outline_atomics(
    words: npt.NDArray[np.uint32], hits: npt.NDArray[Any], rows: npt.NDArray[np.uint16]
) -> npt.NDArray[np.bool_]:
    """Return which hits are the LSE instruction of an outline-atomics helper whose name was stripped.

    Such a helper is ``ldrb w16, [x16, #n]; cbz w16, ...`` and then the instruction, in libgcc and
    compiler-rt alike.
    """
    lse = _needing_lse_alone()
    result = np.zeros(len(hits), np.bool_)
    some = np.flatnonzero((hits >= 2) & lse[rows[hits]])
    place = hits[some]
    load = (words[place - 2] & np.uint32(0xFFC003FF)) == np.uint32(0x39400210)
    branch = (words[place - 1] & np.uint32(0xFF00001F)) == np.uint32(0x34000010)
    result[some] = load & branch
    return result
