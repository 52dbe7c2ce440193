"""Where functions begin and end (.symtab, .dynsym, .eh_frame_hdr), and which words of code are data."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from armbuild.audit.elf import Elf, Section

    Bytes = npt.NDArray[np.uint8]
    Addresses = npt.NDArray[np.uint64]

# ELF-64 object file format, "Symbol Table"
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_WIDE = np.dtype([(name, "<u4" if name == "section" else _SYMBOL[name]) for name in _SYMBOL.names or ()])
_NOTYPE, _FUNC, _IFUNC = 0, 2, 10
# Section numbers from the first on are none; the second says that a table beside the symbols has the number.
_RESERVED, _ELSEWHERE, _NOWHERE = 0xFF00, 0xFFFF, 0xFFFFFFFF
# DWARF exception header encodings (LSB, "Exception Frames"): sdata4 relative to the header, and udata4
_HDR_TABLE, _HDR_COUNT, _PC_SDATA4 = 0x3B, 0x03, 0x1B


@dataclass(frozen=True, kw_only=True)
class Functions:
    """Functions by address; ``size`` is 0 where no source has it, ``name`` an offset into ``strings``."""

    start: Addresses
    size: Addresses
    name: npt.NDArray[np.int64]
    strings: bytes

    def find(self, addresses: Addresses) -> npt.NDArray[np.int64]:
        """Return for each address the index of the last function that begins at or before it, -1 for none."""
        return np.searchsorted(self.start, addresses, side="right").astype(np.int64) - 1

    def label(self, index: int) -> str:
        """Return the function's name, or its address when it has lost its name."""
        if index < 0:
            return "(outside of any function)"
        offset = int(self.name[index])
        if offset < 0:
            return f"function at {int(self.start[index]):#x}"
        return self.strings[offset : offset + 1000].partition(b"\0")[0].decode("utf-8", "replace")


@dataclass(frozen=True, kw_only=True)
class Mapping:
    """The mapping symbols of one section: sorted addresses, and whether code or data begins there."""

    address: Addresses
    code: npt.NDArray[np.bool_]


def symbols(data: Bytes, elf: Elf, table: str) -> tuple[npt.NDArray[Any], bytes]:
    """Return the entries and the strings of ``.symtab`` or ``.dynsym``; empty when the file has none."""
    kind = {".symtab": "SHT_SYMTAB", ".dynsym": "SHT_DYNSYM"}[table]
    number, section = next(
        ((at, item) for at, item in enumerate(elf.sections) if item.type == kind), (0, None)
    )
    if section is None or section.link >= len(elf.sections):
        return np.empty(0, _WIDE), b""
    strings = elf.sections[section.link]
    entries = _array(data, section, _SYMBOL).astype(_WIDE)
    reserved, elsewhere = entries["section"] >= _RESERVED, entries["section"] == _ELSEWHERE
    entries["section"][reserved] = _NOWHERE
    if elsewhere.any():
        beside = [item for item in elf.sections if item.type == "SHT_SYMTAB_SHNDX" and item.link == number]
        numbers = _array(data, beside[0], np.dtype("<u4")) if beside else np.empty(0, np.uint32)
        at = np.flatnonzero(elsewhere[: len(numbers)])
        entries["section"][at] = numbers[at]
    return entries, data[strings.offset : strings.offset + strings.size].tobytes()


def find_functions(data: Bytes, elf: Elf) -> Functions:
    """Return every function that the file's tables tell of, by address; named ones win over nameless ones."""
    parts = []
    strings = b""
    for table in (".symtab", ".dynsym"):
        entries, names = symbols(data, elf, table)
        kind = entries["info"] & 0xF
        wanted = entries[((kind == _FUNC) | (kind == _IFUNC)) & (entries["section"] != 0)]
        value = wanted["value"]
        if elf.type == "ET_REL":  # values are relative to their section, which all begin at 0
            value = value + _bases(elf)[np.minimum(wanted["section"], len(elf.sections))]
        parts.append((value, wanted["size"], wanted["name"].astype(np.int64) + len(strings)))
        strings += names + b"\0"
    start, size = _unwind_entries(data, elf)
    parts.append((start, size, np.full(len(start), -1, np.int64)))
    starts = np.concatenate([part[0] for part in parts]).astype(np.uint64)
    sizes = np.concatenate([part[1] for part in parts]).astype(np.uint64)
    offsets = np.concatenate([part[2] for part in parts])
    _, first = np.unique(
        starts, return_index=True
    )  # the first of equals: .symtab, then .dynsym, then .eh_frame
    return Functions(start=starts[first], size=sizes[first], name=offsets[first], strings=strings)


def mappings(data: Bytes, elf: Elf) -> dict[int, Mapping]:
    """Return the mapping symbols (AAELF64, "Mapping symbols") of each section with some, by its number."""
    entries, names = symbols(data, elf, ".symtab")
    own = entries[(entries["info"] & 0xF) == _NOTYPE]
    text = np.frombuffer(names + b"\xff" * 3, np.uint8)
    begin = np.minimum(own["name"], len(names))
    marked = (text[begin] == ord("$")) & np.isin(text[begin + 1], list(b"xd"))
    marked &= np.isin(text[begin + 2], list(b"\0.")) & (own["section"] < len(elf.sections))
    own, code = own[marked], text[begin[marked] + 1] == ord("x")
    bases = _bases(elf) if elf.type == "ET_REL" else np.zeros(len(elf.sections), np.uint64)
    address = own["value"] + bases[own["section"]]
    order = np.lexsort((code, address, own["section"]))
    numbers, first = np.unique(own["section"][order], return_index=True)
    parts = np.split(order, first[1:])
    return {
        number: Mapping(address=address[part], code=code[part])
        for number, part in zip(numbers.tolist(), parts, strict=bool(len(numbers)))
    }


def literals(
    words: npt.NDArray[np.uint32],
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the LDR (literal) instructions among ``words`` with the first words that they load: data.

    Both are indices. After that come those that load a second word, a third and a fourth.
    """
    loads = np.flatnonzero((words & np.uint32(0x3B000000)) == np.uint32(0x18000000))
    loads = loads[(words[loads] >> np.uint32(30)) != 3]  # opc 11 is PRFM
    offset = ((words[loads].astype(np.int64) >> 5) & 0x7FFFF ^ 0x40000) - 0x40000
    size = np.where(words[loads] & np.uint32(1 << 26), 4 << (words[loads] >> np.uint32(30)), 8) // 4
    for step in range(4):
        more = size > step
        yield loads[more], (loads + offset)[more] + step


def _unwind_entries(data: Bytes, elf: Elf) -> tuple[Addresses, Addresses]:
    """Return starts and sizes from .eh_frame_hdr's search table and the .eh_frame entries it points to."""
    nothing = np.empty(0, np.uint64), np.empty(0, np.uint64)
    header, frame = elf.section(".eh_frame_hdr"), elf.section(".eh_frame")
    if header is None or frame is None or header.size < 12:
        return nothing
    raw = data[header.offset : header.offset + header.size].tobytes()
    version, _, count_encoding, table_encoding = raw[:4]
    if (version, count_encoding, table_encoding) != (1, _HDR_COUNT, _HDR_TABLE):
        return nothing
    count = min(struct.unpack_from("<I", raw, 8)[0], (len(raw) - 12) // 8)
    pairs: npt.NDArray[np.int64]
    pairs = np.frombuffer(raw, "<i4", count * 2, 12).reshape(-1, 2).astype(np.int64) + header.address
    # Each entry: length, offset to its common part, start (4 bytes, relative), size (4 bytes).
    place = pairs[:, 1] - frame.address
    valid = (place >= 0) & (place + 16 <= frame.size)
    pairs, place = pairs[valid], place[valid] + frame.offset
    size = np.zeros(len(place), np.uint64)
    for byte in range(4):
        size |= data[place + 12 + byte].astype(np.uint64) << np.uint64(8 * byte)
    return pairs[:, 0].astype(np.uint64), size


def _array(data: Bytes, section: Section, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    count = section.size // kind.itemsize
    return np.frombuffer(data[section.offset : section.offset + count * kind.itemsize].tobytes(), kind)


def _bases(elf: Elf) -> Addresses:
    return np.array([*(section.address for section in elf.sections), 0], np.uint64)
