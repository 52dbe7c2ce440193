"""Which extension each A64 instruction word needs, for whole sections at once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from armisa.tables import extensions, load

if TYPE_CHECKING:
    import numpy.typing as npt

    Words = npt.NDArray[np.uint32]
    Rows = npt.NDArray[np.uint16]

CHUNK = 1 << 20
# The value in `classify`'s result for a word that no instruction has.
UNDEFINED = 0xFFFF
# Bits 28 to 25 (Arm ARM, C4.1): reserved and SME, unallocated, SVE, unallocated; what is allocated has a row.
_SPARSE = np.array([True, True, True, True] + [False] * 12)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of instructions.toml: ``word & mask == value`` needs ``extensions`` (none: Armv8.0-A)."""

    extensions: frozenset[str]
    mask: int
    value: int
    instructions: str


@dataclass(frozen=True)
class _Table:
    rows: tuple[Row, ...]
    interesting: npt.NDArray[np.bool_]
    by_group: tuple[tuple[int, ...], ...]


@functools.cache
def table() -> tuple[Row, ...]:
    """Return the rows of instructions.toml; the first that matches a word decides. Row 0 matches nothing."""
    rows = [Row(extensions=frozenset(), mask=0, value=1, instructions="")]
    for group in load("instructions", "armbuild").values():
        for needs, encoding, instructions in group["rows"]:
            bits = encoding.replace(" ", "")
            names = frozenset() if needs == "none" else frozenset(needs.split("+"))
            if len(bits) != 32 or set(bits) - set("01x") or names - set(extensions()):
                raise ValueError(f"instructions.toml: bad row {needs} {encoding}")
            rows.append(
                Row(
                    extensions=names,
                    mask=int(bits.translate(str.maketrans("01x", "110")), 2),
                    value=int(bits.replace("x", "0"), 2),
                    instructions=instructions,
                )
            )
    return tuple(rows)


@functools.cache
def _compiled() -> _Table:
    """Prepare the table: which upper halves of words any row matches; the rows by bits 28 to 25."""
    rows = table()
    halves = np.arange(1 << 16, dtype=np.uint32)
    interesting = _SPARSE[(halves >> 9) & 0xF]
    for row in rows[1:]:
        interesting |= (halves & np.uint32(row.mask >> 16)) == np.uint32(row.value >> 16)
    by_group = tuple(
        tuple(
            index
            for index, row in enumerate(rows)
            if index and (group << 25) & row.mask == row.value & (0xF << 25)
        )
        for group in range(16)
    )
    return _Table(rows, interesting, by_group)


def classify(words: Words) -> Rows:
    """Return for each word the row of ``table()`` that decides, 0 for none, UNDEFINED for no instruction.

    Only what lies in an encoding group that is sparsely used is ever called UNDEFINED.
    """
    result = np.zeros(len(words), np.uint16)
    for start in range(0, len(words), CHUNK):
        chunk = words[start : start + CHUNK]
        positions = np.flatnonzero(_compiled().interesting[chunk >> np.uint32(16)])
        if len(positions):
            unique, inverse = np.unique(chunk[positions], return_inverse=True)
            result[start + positions] = _match(unique)[inverse]
    return result


def _match(words: Words) -> Rows:
    compiled = _compiled()
    group = (words >> np.uint32(25)) & np.uint32(0xF)
    result: Rows = np.where(_SPARSE[group], UNDEFINED, 0).astype(np.uint16)
    for number in np.unique(group):
        selected = np.flatnonzero(group == number)
        subset = words[selected]
        found = np.full(len(subset), result[selected[0]], np.uint16)
        for index in reversed(compiled.by_group[number]):
            row = compiled.rows[index]
            found[(subset & np.uint32(row.mask)) == np.uint32(row.value)] = index
        result[selected] = found
    return result


@functools.cache
def needs_of_row(index: int) -> frozenset[str]:
    """Return the extensions that the instructions of this row need."""
    return table()[index].extensions if index != UNDEFINED else frozenset()
