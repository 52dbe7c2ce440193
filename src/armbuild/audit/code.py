"""What the code of one ELF file needs, function by function."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from armbuild.audit import functions as bounds
from armbuild.audit import startup
from armbuild.audit.disassembly import disassemble
from armbuild.audit.elf import BrokenElf, Section
from armbuild.audit.instructions import CHUNK, UNDEFINED, classify, needs_of_row, table
from armbuild.audit.section_batches import Batch, batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from armbuild.audit.elf import Elf

# compiler-rt and libgcc: each helper checks for LSE itself before it uses one of its instructions.
_OUTLINE_ATOMICS = re.compile(r"__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)\d+_(relax|acq|rel|acq_rel|sync)")
# What compilers use for atomic operations wherever they may.
_ATOMICS = frozenset({"lse", "rcpc", "rcpc2"})
_LSE = frozenset({"lse"})
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
    ``at_load`` are the needs of instructions that loading the file runs for certain; ``unguarded`` are needs
    that nothing checks the CPU for.
    """

    name: str
    section: str
    address: int
    uses: tuple[Use, ...]
    needs: frozenset[str]
    doubt: str | None = None
    at_load: frozenset[str] = frozenset()
    unguarded: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class Code:
    """The code of one ELF file: what it needs, and how many instructions and functions were looked at."""

    functions: list[Function] = field(default_factory=list)
    words: int = 0
    known_functions: int = 0
    self_checked: int = 0
    work: int = 0
    """What it took to follow the code that loading the file runs."""


def scan(path: Path, elf: Elf) -> Code:
    """Return what the code of the little-endian AArch64 file ``path`` needs; streams through a memory map."""
    scanner = _Scanner(np.asarray(np.memmap(path, np.uint8, "r")), elf)
    for batch in batches(_code_sections(elf)):
        scanner.sections(batch)
    scanner.mark_unguarded()
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
        self.certain, work = startup.certain_words(data, elf, self.known)
        self.uses = 0
        self.helpers: set[int] = set()
        self.code = Code(known_functions=len(self.known.start), work=work)

    def sections(self, batch: Batch) -> None:
        """Add the functions of a batch of sections, whose words are looked at in pieces."""
        words = batch.read(self.data)
        self.code.words += len(words)
        marked = batch.marked(self.marks)
        literals: npt.NDArray[np.bool_] | None = None
        broken = set[tuple[int, int]]()
        found: dict[tuple[int, int], dict[int, Use]] = {}
        for start in range(0, len(words), CHUNK):
            rows = classify(words[start : start + CHUNK])
            hits = np.flatnonzero(rows)
            kinds, hits = rows[hits], hits + start
            undefined = hits[(kinds == UNDEFINED) & (words[hits] != 0) & ~marked[batch.owner(hits)]]
            broken.update(self._functions(batch, undefined))
            wanted = kinds != UNDEFINED
            wanted[wanted] = _needing()[kinds[wanted]]
            hits, kinds = hits[wanted], kinds[wanted]
            if not len(hits):
                continue
            if literals is None:
                literals = batch.literals(words)
            is_code = np.where(marked[batch.owner(hits)], batch.code(self.marks, hits), ~literals[hits])
            hits, kinds = hits[is_code], kinds[is_code]
            helpers = _outline_atomics(words, hits, kinds, batch.within(hits))
            self.code.self_checked += int(helpers.sum())
            self.helpers.update(self.known.find(batch.addresses(hits[helpers])).tolist())
            self._uses(words, kinds[~helpers], hits[~helpers], batch, found)
        for (at, index), uses in found.items():
            section, stripped = batch.found[at][1], not marked[at]
            self._function(
                index, list(uses.values()), section, stripped=stripped, broken=(at, index) in broken
            )

    def _functions(self, batch: Batch, indices: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
        """Return the sections, and the functions therein, that have these words; some come several times."""
        section, function = batch.owner(indices), self.known.find(batch.addresses(indices))
        new = np.flatnonzero((np.diff(section, prepend=-1) != 0) | (np.diff(function, prepend=-2) != 0))
        return zip(section[new].tolist(), function[new].tolist(), strict=True)

    def _uses(
        self,
        words: npt.NDArray[np.uint32],
        row: npt.NDArray[np.uint16],
        hits: npt.NDArray[Any],
        batch: Batch,
        found: dict[tuple[int, int], dict[int, Use]],
    ) -> None:
        """Add to what was ``found``, for each function of each section, its uses by row of the table."""
        function, section = self.known.find(batch.addresses(hits)), batch.owner(hits)
        order = np.lexsort((row, function, section))  # which keeps the order of equals
        hits, keys = hits[order], tuple(key[order].astype(np.int64) for key in (section, function, row))
        new = np.flatnonzero(np.logical_or.reduce([np.diff(key, prepend=-2) != 0 for key in keys]))
        if not len(new):
            return
        last = np.append(new[1:], len(hits)) - 1
        addresses = batch.addresses(hits)
        certain = np.logical_or.reduceat(np.isin(addresses, self.certain), new)
        firsts = (addresses[new], addresses[last], words[hits[new]], certain)
        columns = (*(key[new] for key in keys), last - new + 1, *firsts)
        for at, index, kind, count, first, final, word, runs in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            uses = found.setdefault((at, index), {})
            if before := uses.get(kind):
                uses[kind] = replace(
                    before, count=before.count + count, last=final, certain=before.certain or runs
                )
                continue
            self.uses += 1
            uses[kind] = Use(row=kind, count=count, address=first, last=final, word=word, certain=runs)
        if self.uses > MAX_USES:
            raise BrokenElf(f"more than {MAX_USES} uses of extensions: not read")

    def _function(
        self, index: int, uses: list[Use], section: Section, *, stripped: bool, broken: bool
    ) -> None:
        name = self.known.label(index)
        if _OUTLINE_ATOMICS.fullmatch(name) or _retags_a_frame(uses) or _reads_a_frame(name, uses):
            self.code.self_checked += sum(use.count for use in uses)
            self.helpers.add(index)
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

    def mark_unguarded(self) -> None:
        """Mark the functions whose atomic instructions of LSE nothing guards.

        What checks the CPU has another way, with exclusive loads: in the same function, or in one beside it.
        So without a guard are the LSE functions without such a load, where they are more than the others
        with one. Where most use newer extensions too, a check of these brings them all (Arm Compute Library).
        """
        using = [item for item in self.code.functions if "lse" in item.needs and item.doubt is None]
        alone = {self._index(item): item for item in using if item.needs <= _ATOMICS}
        if 2 * len(alone) <= len(using):
            return
        exclusive = self._with_exclusive_loads()
        found = alone.keys() - exclusive - {-1}
        if len(found) <= len(exclusive - alone.keys() - self.helpers):
            return
        self.code.functions = [
            replace(item, unguarded=_LSE)
            if alone.get(index := self._index(item)) is item and index in found
            else item
            for item in self.code.functions
        ]

    def _index(self, function: Function) -> int:
        return int(self.known.find(np.array([function.address], np.uint64))[0])

    def _with_exclusive_loads(self) -> set[int]:
        """Return the functions with LDXR, LDXP or their kin."""
        found: set[int] = set()
        for batch in batches(_code_sections(self.elf)):
            words = batch.read(self.data)
            for start in range(0, len(words), CHUNK):
                part = words[start : start + CHUNK]
                hits = np.flatnonzero(
                    ((part & np.uint32(0x3FE00000)) == np.uint32(0x08400000))
                    | ((part & np.uint32(0xBFE00000)) == np.uint32(0x88600000))
                )
                found.update(self.known.find(batch.addresses(hits + start)).tolist())
        return found


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
    words: npt.NDArray[np.uint32],
    hits: npt.NDArray[Any],
    rows: npt.NDArray[np.uint16],
    within: npt.NDArray[Any],
) -> npt.NDArray[np.bool_]:
    """Return which hits are the LSE instruction of an outline-atomics helper whose name was stripped.

    ``rows`` are those of the hits, ``within`` their places in their sections. Such a helper is
    ``ldrb w16, [x16, #n]; cbz w16, ...`` and then the instruction, in libgcc and compiler-rt alike.
    """
    lse = _needing_lse_alone()
    result = np.zeros(len(hits), np.bool_)
    some = np.flatnonzero((within >= 2) & lse[rows])
    place = hits[some]
    load = (words[place - 2] & np.uint32(0xFFC003FF)) == np.uint32(0x39400210)
    branch = (words[place - 1] & np.uint32(0xFF00001F)) == np.uint32(0x34000010)
    result[some] = load & branch
    return result
