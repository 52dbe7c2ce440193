"""Whether an extension for Python's stable ABI keeps to it: what it imports of the interpreter.

The rules are those of PEP 384 and of CPython's Misc/stable_abi.toml: a wheel ``cp38-abi3`` may import what
the limited API had in Python 3.8, and nothing else of the interpreter. The table is abi3info's. In ``abi3t``,
for Pythons without the global lock, the structures of objects and of PyModuleDef are opaque (PEP 803).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elftools.elf.sections import SymbolTableSection

from armbuild.artifact import elffile
from armbuild.artifact.wheelfile import EXTENSION, STABLE_ABIS
from armbuild.audit.elf import BrokenElf
from armbuild.errors import packages_of

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.artifact.wheelfile import FileName

_SYMBOL = re.compile(r"_?Py[A-Z_]\w*")
_MOST_SYMBOLS = 200_000
_OPAQUE = frozenset({"PyModuleDef_Init", "PyModule_Create2", "PyModule_FromDefAndSpec2", "_Py_Dealloc"})
"""What only code imports that knows the structures: of PyModuleDef, and of objects, to count references."""


def check(name: str, path: Path, wheel: FileName | None) -> tuple[list[str], list[str]]:
    """Return errors and warnings about what the file ``name`` imports of the interpreter.

    A wheel's abi3 tag is a promise, and breaking it an error. The suffix alone, in a wheel for one Python,
    promises to nobody: that is a warning.
    """
    promised = [tag for tag in wheel.tags if tag.abi in STABLE_ABIS] if wheel else []
    suffix = EXTENSION.search(name)
    stable = suffix["stable"] if suffix else None
    if not (promised or stable) or (suffix and suffix["digits"]):
        return [], []
    imported = _imported(path)
    if not imported:
        return [], []
    versions = [int(tag.interpreter[3:]) for tag in promised if re.fullmatch(r"cp3\d+", tag.interpreter)]
    found = _violations(name, imported, min(versions, default=None))
    free = stable == "abi3t" or (stable is None and any(tag.abi == "abi3t" for tag in promised))
    if free and (opaque := sorted(imported & _OPAQUE)):
        found.append(f"{name}: not in abi3t, whose structures are opaque: {_some(opaque)}")
    return (found, []) if promised else ([], found)


def _violations(name: str, imported: set[str], oldest: int | None) -> list[str]:
    """Return a line for symbols outside of the stable ABI, one for those newer than Python 3.``oldest``."""
    with packages_of("build"):
        import abi3info  # noqa: PLC0415 - for these wheels alone
        from abi3info.models import Symbol  # noqa: PLC0415

    added = {}
    for symbol in imported:
        entry = abi3info.FUNCTIONS.get(Symbol(symbol)) or abi3info.DATAS.get(Symbol(symbol))
        added[symbol] = entry.added.minor if entry else None
    foreign = sorted(symbol for symbol, minor in added.items() if minor is None)
    lines = [f"{name}: not in Python's stable ABI: {_some(foreign)}"] if foreign else []
    late = sorted(symbol for symbol, minor in added.items() if minor and oldest and minor > oldest)
    if late:
        newest = max(added[symbol] or 0 for symbol in late)
        lines.append(f"{name}: the tag says Python 3.{oldest}, it needs 3.{newest} for {_some(late)}")
    return lines


def _some(symbols: list[str]) -> str:
    more = f" and {len(symbols) - 5} more" if len(symbols) > 5 else ""
    return ", ".join(symbols[:5]) + more


def _imported(path: Path) -> set[str]:
    """Return the interpreter's symbols without which the dynamic linker refuses the file."""
    with path.open("rb") as file:
        table = elffile.opened(file).get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            return set()
        if table.num_symbols() > _MOST_SYMBOLS:
            raise BrokenElf(f"{table.num_symbols()} dynamic symbols: not read")
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and _SYMBOL.fullmatch(symbol.name)
        }
