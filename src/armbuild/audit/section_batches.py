"""Sections of code side by side as one array of words: an object may have one for each function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from armbuild.audit import functions as bounds
from armbuild.audit.instructions import CHUNK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy.typing as npt

    from armbuild.audit.elf import Section

WORDS = 1 << 18
"""Of a batch of several sections; a larger one is a batch by itself."""


@dataclass(frozen=True)
class Batch:
    """Sections with their numbers; ``start`` has where in the array each begins, and the array's end."""

    found: tuple[tuple[int, Section], ...]
    start: npt.NDArray[np.int64]
    base: npt.NDArray[np.uint64]
    """The address of each section's first word."""

    def read(self, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
        """Return the words of all sections."""
        parts = []
        for (_, section), count in zip(self.found, np.diff(self.start).tolist(), strict=True):
            begin = section.offset + -section.address % 4
            parts.append(data[begin : begin + 4 * count])
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.frombuffer(joined, "<u4")

    def owner(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return for each word, by its index, which of the sections has it."""
        if len(self.found) == 1:  # which may have many millions
            return np.zeros(len(indices), np.int64)
        return np.searchsorted(self.start, indices, side="right").astype(np.int64) - 1

    def within(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return for each word its index in its section."""
        found: npt.NDArray[np.int64] = indices - self.start[self.owner(indices)]
        return found

    def addresses(self, indices: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
        """Return the address of each word."""
        found: npt.NDArray[np.uint64] = self.base[self.owner(indices)] + 4 * self.within(indices).astype(
            np.uint64
        )
        return found

    def marked(self, marks: Mapping[int, bounds.Mapping]) -> npt.NDArray[np.bool_]:
        """Return for each section whether it has mapping symbols."""
        return np.array([number in marks for number, _ in self.found], np.bool_)

    def code(self, marks: Mapping[int, bounds.Mapping], indices: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return for each word whether it is code, by mapping symbols; so is what precedes them."""
        places: list[npt.NDArray[np.uint64]] = []
        kinds: list[npt.NDArray[np.bool_]] = []
        owners: list[npt.NDArray[np.int64]] = []
        for at, (number, _) in enumerate(self.found):
            if (own := marks.get(number)) is not None:
                places.append(own.address)
                kinds.append(own.code)
                owners.append(np.full(len(own.address), at))
        if not places:
            return np.ones(len(indices), np.bool_)
        address, kind, owner = np.concatenate(places), np.concatenate(kinds), np.concatenate(owners)
        base, start, end = self.base[owner], self.start[owner], self.start[owner + 1]
        behind = np.maximum(address, base) - base  # in bytes; the first word at or behind it is another kind
        place = np.minimum((behind // 4 + (behind % 4 > 0)).astype(np.int64), end - start) + start
        last = np.searchsorted(place, indices, side="right") - 1
        return np.where((last >= 0) & (owner[last] == self.owner(indices)), kind[last], True)

    def literals(self, code: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
        """Return for each word whether an LDR (literal) instruction of the same section loads it."""
        found = np.zeros(len(code), np.bool_)
        for start in range(0, len(code), CHUNK):
            for load, loaded in bounds.literals(code[start : start + CHUNK]):
                owner, target = self.owner(load + start), loaded + start
                inside = (target >= 0) & (target < len(code))
                inside[inside] = owner[inside] == self.owner(target[inside])
                found[target[inside]] = True
        return found


def batches(sections: Iterable[tuple[int, Section]]) -> Iterator[Batch]:
    """Return sections of code, with their numbers, in batches of about ``WORDS``."""
    found: list[tuple[int, Section]] = []
    counts: list[int] = []
    total = 0
    for number, section in sections:
        count = max(section.size - -section.address % 4, 0) // 4
        if found and total + count > WORDS:
            yield _batch(found, counts)
            found, counts, total = [], [], 0
        total += count
        found.append((number, section))
        counts.append(count)
    if found:
        yield _batch(found, counts)


def _batch(found: list[tuple[int, Section]], counts: list[int]) -> Batch:
    base = [section.address + -section.address % 4 for _, section in found]
    return Batch(tuple(found), np.cumsum([0, *counts]), np.array(base, np.uint64))
