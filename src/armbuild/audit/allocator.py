"""The page size for which an allocator in a file was built: jemalloc fails with larger pages.

It compares the system's page size with its own, and complains with a sentence of its own. The comparison
before that sentence has the size in its instruction.
"""

from __future__ import annotations

import mmap
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from armbuild.audit.elf import LARGEST_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from armbuild.audit.elf import Elf

SENTENCE = b"<jemalloc>: Unsupported system page size"
PAGES = frozenset(1 << bits for bits in range(12, 17))
_NEAR, _JUST_BEFORE = 1024, 6
"""How many instructions away the branch to the complaint is searched, and the comparison before it."""
_MOST_USERS, _MOST_ON_PAGE = 20, 10_000
"""How often in a piece of code the sentence may be used, and other data of its 4 KiB."""
_PIECE = 1 << 20
"""Instructions that are looked at together."""


def check(name: str, path: Path, elf: Elf) -> tuple[list[str], list[str]]:
    """Return errors and warnings about jemalloc in the file ``name``."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        place = content.find(SENTENCE)
        if place < 0:
            return [], []
        found = _page(content, elf, place)
    if found is None:
        return [], [f"{name}: jemalloc is inside, and for which pages it was built is not seen"]
    if found >= LARGEST_PAGE:
        return [], []
    reason = f"jemalloc inside was built for pages of {found >> 10} KiB, and fails where they are larger"
    return [f"{name}: {reason} (JEMALLOC_SYS_WITH_LG_PAGE=16, --with-lg-page=16)"], []


def _page(content: mmap.mmap, elf: Elf, place: int) -> int | None:
    """Return the page size that is compared before the sentence at ``place``, None where that is not seen."""
    holder = next(
        (item for item in elf.sections if item.offset <= place < item.offset + item.size and item.address),
        None,
    )
    if holder is None:
        return None
    sentence = holder.address + place - holder.offset
    for address, offset, size in elf.code:
        # Pieces overlap by what is looked at around a user.
        for start in range(0, size // 4, _PIECE - 2 * _NEAR):
            place, count = offset + 4 * start, min(_PIECE, size // 4 - start)
            instructions = np.frombuffer(content[place : place + 4 * count], "<u4").astype(np.int64)
            for index in islice(_users(instructions, address + 4 * start, sentence), _MOST_USERS):
                for branch in _branches(instructions, index):
                    if page := _compared(instructions, branch):
                        return page
    return None


def _users(instructions: NDArray[np.int64], address: int, sentence: int) -> Iterator[int]:
    """Give where code makes the address ``sentence``: by ADR, or by ADRP and ADD."""
    near, far = ((instructions & 0x9F000000) == code for code in (0x10000000, 0x90000000))
    distance = (instructions >> 5 & 0x7FFFF) << 2 | (instructions >> 29 & 3)
    distance = np.where(distance >> 20, distance - (1 << 21), distance)
    own = address + 4 * np.arange(len(instructions))
    yield from np.flatnonzero(near & (own + distance == sentence)).tolist()
    pages = np.flatnonzero(far & ((own >> 12) + distance == sentence >> 12))
    for place in pages[:_MOST_ON_PAGE].tolist():
        register = int(instructions[place]) & 31
        for word in instructions[place + 1 : place + 9].tolist():
            if word & 0xFFC003E0 == 0x91000000 | register << 5 and word >> 10 & 0xFFF == sentence & 0xFFF:
                yield place


def _branches(instructions: NDArray[np.int64], index: int) -> Iterator[int]:
    """Give the conditional branches to the code at ``index``, and one just before it that leads past it."""
    first = max(0, index - _NEAR)
    for place, word in enumerate(instructions[first : index + _NEAR].tolist(), first):
        if word & 0xFF000010 == 0x54000000:
            distance = (word >> 5 & 0x7FFFF) - (word >> 4 & 1 << 19)
            if index - 2 <= place + distance <= index or index - 3 <= place < index:
                yield place


def _compared(instructions: NDArray[np.int64], branch: int) -> int | None:
    """Return the page size that the last comparison (SUBS with a number) before ``branch`` has."""
    for word in reversed(instructions[max(0, branch - _JUST_BEFORE) : branch].tolist()):
        if word & 0xFF800000 == 0xF1000000:
            value = (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
            return value if value in PAGES else None
    return None
