"""The libraries that a wheel's code needs, and undefined functions, which the linker accepts."""

from __future__ import annotations

import contextlib
import functools
import io
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.gnuversions import GNUVerSymSection
from elftools.elf.sections import SymbolTableSection

from armbuild.artifact import archives, elffile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from elftools.elf.elffile import ELFFile

GLIBC = re.compile(r"(?:lib(?:c|m|dl|pthread|rt|util|resolv|gcc_s|stdc\+\+)|ld-linux-aarch64)\.so\.\d+$")
"""Libraries whose symbols carry versions, so that an unversioned one cannot come from them."""
MUSL = frozenset({"libc.so", "libc.musl-aarch64.so.1"})
"""What musl, all of which is one library without versions, is called: by its linkers, and by Alpine."""
NEWER_MUSL = {
    "1.2.3": "fts_children fts_close fts_open fts_read fts_set pthread_getname_np qsort_r",
    "1.2.5": "crypt crypt_r encrypt preadv2 pwritev2 renameat2 setkey statx",
}
"""What musl has gained since the oldest 1.2 (Debian's packages compared, bullseye to trixie)."""
INTERPRETER = re.compile(r"_?Py|pthread_")
"""What the interpreter's process has: CPython is linked with libpthread, which scipy relies on."""
UNREADABLE = (ELFError, AssertionError, *archives.BROKEN)
"""What pyelftools raises for broken files, which the audit reports."""
MAX_SYMBOLS = 200_000
"""Libraries with more symbols than this are not searched: they are prebuilt, and it would take a minute."""


def unresolved(path: Path) -> list[str]:
    """Return one line per function of a wheel's shared objects that no library it needs can define."""
    defined: set[str] = set()
    missing: dict[str, set[str]] = {}
    for name, content in _objects(path):
        if content.startswith(b"\x7fELF"):
            _collect(name, content, defined, missing)
    return [
        newer_than_musl(name, symbol) or f"{name} needs the function {symbol}, which nothing defines"
        for name, symbols in missing.items()
        for symbol in sorted(symbols - defined)
    ]


@functools.cache
def musl() -> frozenset[str]:
    """Return what every musl 1.2 defines."""
    text = files("armbuild").joinpath("data/musl_symbols.txt").read_text(encoding="utf-8")
    return frozenset(text.partition("\n")[2].split())


def newer_than_musl(name: str, symbol: str) -> str:
    """Return why musllinux_1_2 does not allow the file ``name`` this symbol; empty where that is not why."""
    release = next((key for key, listed in NEWER_MUSL.items() if symbol in listed.split()), None)
    return f"{name} needs {symbol}, which musl has from {release} on" if release else ""


def libraries(path: Path) -> frozenset[str]:
    """Return the names of all libraries that a wheel's shared objects need."""
    found: set[str] = set()
    for _, content in _objects(path):
        with contextlib.suppress(*UNREADABLE):
            found |= set(_needed(elffile.opened(io.BytesIO(content))))
    return frozenset(found)


def of_gnu_cxx(path: Path, folders: Iterable[Path]) -> str:
    """Return which library of ``folders`` with GNU's C++ library a wheel calls in C++; else nothing.

    Code with LLVM's C++ library has other strings, and does not catch the exceptions of GNU's.
    """
    places = list(folders)
    defined: set[str] = set()
    wanted: dict[str, tuple[set[str], list[str]]] = {}
    for name, content in _objects(path):
        with contextlib.suppress(*UNREADABLE):
            elf = elffile.opened(io.BytesIO(content))
            own, others = _cxx_names(elf)
            defined |= own
            wanted[name] = (others, _needed(elf))
    for name, (names, needed) in wanted.items():
        for library in needed if names - defined else ():
            found = next((folder / library for folder in places if (folder / library).is_file()), None)
            if found and "libstdc++.so.6" in _needed_by_file(found):
                return f"{name} calls C++ functions of {library}, which is linked with GNU's C++ library"
    return ""


def _objects(path: Path) -> Iterator[tuple[str, bytes]]:
    """Give the name and the bytes of each shared object of a wheel. A broken one is the audit's to report."""
    with archives.open_zip(path) as archive:
        for name in archive.namelist():
            if name.endswith(".so") or ".so." in name:
                with contextlib.suppress(*archives.BROKEN):
                    yield name, archive.read(name)


def _cxx_names(elf: ELFFile) -> tuple[set[str], set[str]]:
    """Return the functions of C++ that a shared object defines, and those that it needs."""
    defined, wanted = set[str](), set[str]()
    table = elf.get_section_by_name(".dynsym")
    if isinstance(table, SymbolTableSection) and table.num_symbols() <= MAX_SYMBOLS:
        for symbol in table.iter_symbols():
            if symbol.name.startswith("_Z"):
                if symbol["st_shndx"] != "SHN_UNDEF":
                    defined.add(symbol.name)
                elif symbol["st_info"]["bind"] == "STB_GLOBAL":
                    wanted.add(symbol.name)
    return defined, wanted


def _needed_by_file(path: Path) -> list[str]:
    with contextlib.suppress(*UNREADABLE), path.open("rb") as file:
        return _needed(elffile.opened(file))
    return []


def _needed(elf: ELFFile) -> list[str]:
    dynamic = elf.get_section_by_name(".dynamic")
    if not isinstance(dynamic, DynamicSection):
        return []
    return [str(getattr(tag, "needed", "")) for tag in dynamic.iter_tags("DT_NEEDED")]


def _collect(name: str, content: bytes, defined: set[str], missing: dict[str, set[str]]) -> None:
    try:
        elf = elffile.opened(io.BytesIO(content))
        table = elf.get_section_by_name(".dynsym")
        versions = elf.get_section_by_name(".gnu.version")
        if not isinstance(table, SymbolTableSection) or table.num_symbols() > MAX_SYMBOLS:
            return
        needed = _needed(elf)
        judge = all(GLIBC.match(library) for library in needed) or set(needed) <= MUSL
        known = musl() if MUSL.intersection(needed) else frozenset()
        wanted = set()
        for index, symbol in enumerate(table.iter_symbols()):
            if symbol["st_shndx"] != "SHN_UNDEF":
                defined.add(symbol.name)
            elif judge and symbol.name and symbol["st_info"]["bind"] == "STB_GLOBAL":
                version = versions.get_symbol(index)["ndx"] if isinstance(versions, GNUVerSymSection) else 0
                if version in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL", 0, 1) and not INTERPRETER.match(
                    symbol.name
                ):
                    wanted.add(symbol.name)
        if wanted - known:
            missing[name] = wanted - known
    except UNREADABLE:
        return  # a broken file is the audit's to report
