"""Compiler flags that allow exactly what a CPU has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armisa.errors import IsaError
from armisa.tables import architectures, extensions, extensions_of, find_core, implied

if TYPE_CHECKING:
    from armisa.model import Isa

COMPILERS = ("gcc", "clang", "zig", "cmake")

# The levels that GCC 12 and clang 15 both know, lowest first; newer features are added one by one.
_LEVELS = ("armv8-a", "armv8.1-a", "armv8.2-a", "armv8.3-a", "armv8.4-a", "armv8.5-a", "armv8.6-a")
# x86-64 psABI, section 3.1.1: the flags that each level adds, in Linux's names.
X86_LEVELS = (
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86-64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86-64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
)


def compiler_flags(isa: Isa, compiler: str) -> str:
    """Return the flags with which ``compiler`` ("gcc", "clang", "zig" or "cmake") may use what ``isa`` has.

    gcc and clang flags are for GCC 12 and clang 15 or newer, zig's for ``zig cc``; "cmake" gives the
    definitions that hand the flags common to gcc and clang to CMake. Raises IsaError for another compiler.
    """
    if compiler not in COMPILERS:
        raise IsaError(f"unknown compiler {compiler!r}: choose from {', '.join(COMPILERS)}")
    if compiler == "cmake":
        flags = _march(isa, ("gcc", "clang"))
        return f'-DCMAKE_SYSTEM_PROCESSOR={isa.machine} -DCMAKE_C_FLAGS="{flags}" -DCMAKE_CXX_FLAGS="{flags}"'
    if isa.machine == "x86_64":
        level = x86_level(isa.features)
        return f"-mcpu={level.replace('-', '_')}" if compiler == "zig" else f"-march={level}"
    if compiler == "zig":
        return _zig(isa)
    return " ".join((_march(isa, (compiler,)), *_mtune(isa)))


def x86_level(features: frozenset[str]) -> str:
    """Return the psABI level of an x86-64 CPU, ``x86-64`` to ``x86-64-v4``."""
    level = "x86-64"
    for name, needed in X86_LEVELS:
        if not needed <= features:
            break
        level = name
    return level


def _march(isa: Isa, compilers: tuple[str, ...]) -> str:
    if isa.machine == "x86_64":
        return f"-march={x86_level(isa.features)}"
    has = _usable(isa.features)
    level = _LEVELS[0]
    for name in _LEVELS:
        # Level 8.3 turns on PAC beyond hint space (retaa, braa), which a kernel may mask.
        if architectures()[name].linux <= isa.features and architectures()[name].extensions <= has | {"lor"}:
            level = name
    spelled = {}
    for name in has - architectures()[level].extensions:
        spellings = {getattr(extensions()[name], compiler) for compiler in compilers}
        if None not in spellings:
            spelled[name] = (
                "rdma" if len(spellings) > 1 else spellings.pop()
            )  # clang takes GCC's rdma beside rdm
    return "-march=" + "+".join((level, *_minimal(spelled)))


def _zig(isa: Isa) -> str:
    spelled = {name: llvm for name in _usable(isa.features) if (llvm := extensions()[name].llvm)}
    return "-mcpu=" + "+".join(("generic", *_minimal(spelled)))


def _mtune(isa: Isa) -> list[str]:
    for core in isa.cores:
        known = find_core(core.implementer, core.part)
        if core.performance and known and known.gcc:
            return [f"-mtune={known.gcc}"]
    return []


def _usable(features: frozenset[str]) -> frozenset[str]:
    """Return the extensions to switch on: bf16 and i8mm beside sve only if their SVE forms are there."""
    has = extensions_of(features)
    if "sve" in has:
        has -= {base for base in ("bf16", "i8mm") if f"sve-{base}" not in has}
    return has


def _minimal(spelled: dict[str, str]) -> list[str]:
    """Leave out what the others imply, so that the line stays readable, in the order of features.toml."""
    covered = {other for name in spelled for other in implied([name]) - {name}}
    return [spelled[name] for name in extensions() if name in spelled and name not in covered]
