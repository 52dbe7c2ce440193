"""Which instructions loading a file runs for certain: the straight lines from its initialisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from armbuild.audit.functions import symbols

if TYPE_CHECKING:
    import numpy.typing as npt

    from armbuild.audit.elf import Elf

    Bytes = npt.NDArray[np.uint8]

# ELF for the Arm 64-bit Architecture (AAELF64), "Relocation"
_RELATIVE, _ABS64 = 1027, 257
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_MAX_STEPS = 20_000
_MAX_DEPTH = 64


def certain_words(data: Bytes, elf: Elf) -> npt.NDArray[np.uint64]:
    """Return the addresses of instructions that run whenever the file is loaded.

    Calls through the PLT lead to other files and are taken to return. Follows branches and calls from every
    initialiser up to the first conditional branch of each function; what lies behind a condition may be
    dispatch, so it proves nothing.
    """
    if elf.type not in ("ET_DYN", "ET_EXEC"):
        return np.empty(0, np.uint64)
    visited: set[int] = set()
    plt = elf.section(".plt")
    foreign = range(plt.address, plt.address + plt.size) if plt else range(0)
    for root in _roots(data, elf):
        _walk(root, data, elf, foreign, visited)
    return np.array(sorted(visited), np.uint64)


def _roots(data: Bytes, elf: Elf) -> list[int]:
    roots = [section.address for section in elf.sections if section.name == ".init"]
    if elf.entry and elf.section(".interp"):
        roots.append(elf.entry)
    entries, names = symbols(data, elf, ".dynsym")
    for offset in _find_all(names, b"\0PyInit_"):
        roots.extend(
            int(entry["value"])
            for entry in entries[(entries["name"] == offset + 1) & (entries["section"] != 0)]
        )
    array = elf.section(".init_array")
    if array is not None:
        raw = data[array.offset : array.offset + array.size // 8 * 8].tobytes()
        roots.extend(int(value) for value in np.frombuffer(raw, "<u8"))
        for section in elf.sections:
            if section.type == "SHT_RELA" and section.size:
                size = section.size // _RELA.itemsize * _RELA.itemsize
                relocations = np.frombuffer(data[section.offset : section.offset + size].tobytes(), _RELA)
                inside = (relocations["offset"] >= array.address) & (
                    relocations["offset"] < array.address + array.size
                )
                for item in relocations[inside]:
                    if item["type"] == _RELATIVE:
                        roots.append(int(item["addend"]))
                    elif item["type"] == _ABS64 and item["symbol"] < len(entries):
                        roots.append(int(entries[int(item["symbol"])]["value"]) + int(item["addend"]))
    return [root for root in dict.fromkeys(roots) if root > 0]


def _find_all(haystack: bytes, needle: bytes) -> list[int]:
    found: list[int] = []
    place = haystack.find(needle)
    while place >= 0 and len(found) < 1000:
        found.append(place)
        place = haystack.find(needle, place + 1)
    return found


def _walk(root: int, data: Bytes, elf: Elf, foreign: range, visited: set[int]) -> None:
    address, calls = root, list[int]()
    for _ in range(_MAX_STEPS):
        word = None if address in visited or address in foreign else _word(address, data, elf)
        if word is None:
            if not calls:
                return
            address = calls.pop()
            continue
        visited.add(address)
        if word & 0x7C000000 == 0x14000000:  # B, BL
            target = address + (((word & 0x3FFFFFF) ^ 0x2000000) - 0x2000000) * 4
            if word >> 31:
                if len(calls) >= _MAX_DEPTH:
                    return
                calls.append(address + 4)
            address = target
        elif _leaves(word):
            if not calls:
                return
            address = calls.pop()
        else:
            address += 4


def _leaves(word: int) -> bool:
    """Return whether what runs for certain ends here: a condition, a return, or a computed jump."""
    return (
        word & 0x7E000000 in (0x34000000, 0x36000000)  # CBZ, CBNZ, TBZ, TBNZ
        or word & 0xFE000000 == 0x54000000  # B.cond
        or (word & 0xFE000000 == 0xD6000000 and word & 0xFFFFFC1F != 0xD63F0000)  # BR, RET; a BLR comes back
        or word & 0xFFE00000 == 0xD4200000  # BRK
        or word >> 16 == 0  # UDF
    )


def _word(address: int, data: Bytes, elf: Elf) -> int | None:
    for start, offset, size in elf.code:
        if start <= address < start + size - 3:
            place = offset + address - start
            return int.from_bytes(data[place : place + 4].tobytes(), "little")
    return None
