"""Which instructions loading a file runs for certain: those on every path through its initializers.

Code that a check of the CPU guards lies beside at least one path that avoids it, so it is never among them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from armbuild.audit.functions import symbols
from armbuild.audit.paths import Graph, Places

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from armbuild.audit.elf import Elf, Section
    from armbuild.audit.functions import Functions

    Bytes = npt.NDArray[np.uint8]

# ELF for the Arm 64-bit Architecture (AAELF64), "Relocation"
_ABS64, _GLOB_DAT, _JUMP_SLOT, _RELATIVE, _IRELATIVE = 257, 1025, 1026, 1027, 1032
_RELA = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])
_IFUNC = 10
_WORD = 8
# CPython, Include/moduleobject.h: the place of PyModuleDef's slots, and the one whose function fills a module
_SLOTS, _EXEC = 72, 2
_MODULE = re.compile(rb"\0(Py(?:Init|ModExport)_)")
# Bounds the time for one file; libtorch_cpu.so, the largest known, needs two thirds.
_MAX_FUNCTIONS = 20_000
_MAX_WORK = 1_000_000


def certain_words(data: Bytes, elf: Elf, known: Functions) -> tuple[npt.NDArray[np.uint64], int]:
    """Return the addresses of instructions that run whenever the file is loaded, and the work that it was.

    Loading runs initializers (.init, .init_array), resolvers of indirect functions, and what Python calls to
    make a module; in a program, its entry too. From there calls are followed, also through the PLT where they
    come back into this file; other files' functions are taken to return.
    """
    if elf.type not in ("ET_DYN", "ET_EXEC"):
        return np.empty(0, np.uint64), 0
    links = _Links(data, elf)
    graph = Graph(data, elf, known, links.through_got)
    certain: set[int] = set()
    done: set[int] = set()
    contents = Places(
        (section.address, section.size, data[section.offset : section.offset + section.size])
        for section in elf.sections
        if section.type == "SHT_PROGBITS" and section.size >= _WORD
    )
    modules = _modules(links)
    todo = [root for root in dict.fromkeys((*modules, *_roots(data, elf, links))) if root > 0]
    while todo and len(done) < _MAX_FUNCTIONS and graph.work < _MAX_WORK:
        start = todo.pop()
        if start not in done:
            done.add(start)
            words, calls = graph.on_every_path(start)
            certain.update(words)
            todo.extend(dict.fromkeys(calls))
            if start in modules:
                todo.extend(_module_bodies(contents, graph, links, words))
    return np.array(sorted(certain), np.uint64), graph.work


class _Links:
    """What the dynamic linker writes into the file's own words: addresses of functions of this file."""

    def __init__(self, data: Bytes, elf: Elf) -> None:
        entries, self.names = symbols(data, elf, ".dynsym")
        self.entries = entries
        found = _relocations(data, elf)
        kind, addend = found["type"], found["addend"].astype(np.uint64)  # addresses wrap, as the loader's do
        symbolic = np.isin(kind, (_ABS64, _GLOB_DAT, _JUMP_SLOT)) & (found["symbol"] < len(entries))
        named = entries[found["symbol"][symbolic]]
        value = np.zeros(len(found), np.uint64)
        value[symbolic] = named["value"]
        defined, indirect = symbolic.copy(), symbolic.copy()
        defined[symbolic] = named["section"] != 0
        indirect[symbolic] = named["info"] & 0xF == _IFUNC
        resolving = (kind == _IRELATIVE) | defined & indirect
        direct = (kind == _RELATIVE) | defined & ~indirect
        self.resolvers: list[int] = np.where(defined, value, addend)[resolving].tolist()
        self.target: dict[int, int] = dict(
            zip(found["offset"][direct].tolist(), (value + addend)[direct].tolist(), strict=True)
        )

    def through_got(self, slot: int) -> int | None:
        """Return the function of this file whose address stands at ``slot``, None for another file's."""
        return self.target.get(slot)


def _relocations(data: Bytes, elf: Elf) -> npt.NDArray[Any]:
    tables = [section for section in elf.sections if section.type == "SHT_RELA"]
    return np.concatenate(
        [
            np.empty(0, _RELA),
            *(np.frombuffer(_whole(data, section, _RELA.itemsize), _RELA) for section in tables),
        ]
    )


def _whole(data: Bytes, section: Section, unit: int) -> bytes:
    return data[section.offset : section.offset + section.size // unit * unit].tobytes()


def _roots(data: Bytes, elf: Elf, links: _Links) -> Iterator[int]:
    """Yield the addresses of the functions that loading calls."""
    yield from links.resolvers
    for section in elf.sections:
        if section.name == ".init":
            yield section.address
        elif section.name in (".init_array", ".preinit_array"):
            written = np.frombuffer(_whole(data, section, _WORD), "<u8")
            for index, value in enumerate(written.tolist()):
                yield links.target.get(section.address + _WORD * index, value)
    if elf.entry and elf.section(".interp"):
        yield elf.entry


def _modules(links: _Links) -> frozenset[int]:
    """Return the functions that Python calls to make a module."""
    entries = links.entries
    names = np.fromiter((found.start(1) for found in _MODULE.finditer(links.names)), np.int64)
    return frozenset(entries[np.isin(entries["name"], names) & (entries["section"] != 0)]["value"].tolist())


def _module_bodies(contents: Places, graph: Graph, links: _Links, words: list[int]) -> Iterator[int]:
    """Yield what Python runs of a module that is made in two phases (PEP 489): its Py_mod_exec slots."""
    for definition in dict.fromkeys(map(graph.loaded_address, words)):
        slot = links.target.get(definition + _SLOTS) if definition is not None else None
        for _ in range(16):
            graph.work += 1
            number = _number(contents, slot) if slot else 0
            if not slot or not 0 < number < 16:
                break
            if number == _EXEC:
                yield links.target.get(slot + _WORD, 0)
            slot += 2 * _WORD


def _number(contents: Places, address: int) -> int:
    place, content = contents.at(address)
    return int.from_bytes(content[place : place + _WORD].tobytes(), "little") if content is not None else 0
