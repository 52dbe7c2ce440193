"""From the functions' needs to answers: what runs everywhere, what only behind dispatch, on which cores."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from armbuild.artifact import wheelfile
from armbuild.audit.report import AuditReport, CoreVerdict, ElfReport, Offence
from armbuild.errors import one_line
from armisa.tables import core_types, extensions_of, implied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from armbuild.audit.code import Function
    from armbuild.audit.floor import Guard

_BASE = frozenset({"fp", "simd"})
# What every fifth of many functions uses, the compiler was allowed for the whole file: nothing dispatches it.
_THROUGHOUT = 0.2
_ENOUGH_FUNCTIONS = 20
# A function's SVE variant, which only SVE code calls (Vector Function ABI for AArch64, name mangling). In
# glibc's libmvec each has a slow path beside it, a function without a name.
_SVE_VARIANT = "_ZGVs"
_FUNCTIONS_OF_VARIANT = 2


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Extensions by how they are reached: for certain, perhaps behind dispatch, behind a named guard."""

    everywhere: frozenset[str]
    dispatched: frozenset[str]
    guarded: frozenset[str]


def judge(
    files: Iterable[ElfReport],
    floor: frozenset[str] | None,
    guards: tuple[Guard, ...],
    baseline: frozenset[str] = frozenset(),
) -> tuple[Needs, tuple[Offence, ...], tuple[Offence, ...]]:
    """Return the needs of ``files``, the offences against ``floor`` (None: Armv8.0-A), the doubtful ones.

    ``baseline`` is what the wheel itself says that all its code was compiled for: nothing dispatches that.
    """
    allowed = (floor if floor is not None else frozenset()) | _BASE
    everywhere: set[str] = set()
    dispatched: set[str] = set()
    guarded: set[str] = set()
    offences, doubts = [], []
    guard = _Guarded(guards).of
    for file in files:
        everywhere |= _throughout(file, guard)
        for function in file.functions:
            if function.doubt:
                if missing := function.needs - allowed - guard(function):
                    doubts.append(Offence(file=file.name, function=function, missing=missing))
                continue
            covered = guard(function)
            guarded |= function.needs & covered
            rest = function.needs - covered
            certain = function.at_load | function.unguarded | baseline
            everywhere |= rest & certain
            dispatched |= rest - certain
            if missing := rest - allowed:
                offences.append(Offence(file=file.name, function=function, missing=missing))
    return (
        Needs(
            everywhere=frozenset(everywhere),
            dispatched=frozenset(dispatched - everywhere),
            guarded=frozenset(guarded - everywhere - dispatched),
        ),
        tuple(offences),
        tuple(doubts),
    )


class _Guarded:
    """What guards cover, remembered for each name: a file has many functions, and each is asked for twice."""

    def __init__(self, guards: tuple[Guard, ...]) -> None:
        self._guards = guards
        self._any = re.compile("|".join(fnmatch.translate(guard.pattern) for guard in guards)).match
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, function: Function) -> frozenset[str]:
        key = function.name, function.section
        found = self._known.get(key)
        if found is None:
            guards = self._guards if any(map(self._any, key)) else ()  # most functions have no guard
            matching = [guard.extensions for guard in guards if guard.matches(*key)]
            found = self._known[key] = frozenset[str]().union(*matching)
        return found


def _throughout(file: ElfReport, guard: Callable[[Function], frozenset[str]]) -> set[str]:
    """Return what so many functions use that the whole file must have been compiled for it."""
    variants = sum(function.name.startswith(_SVE_VARIANT) for function in file.functions)
    counts = {"sve": -_FUNCTIONS_OF_VARIANT * variants}
    for function in file.functions:
        if not function.doubt:
            for name in function.needs - guard(function):
                counts[name] = counts.get(name, 0) + 1
    return {
        name
        for name, count in counts.items()
        if count >= _ENOUGH_FUNCTIONS and count >= _THROUGHOUT * file.known_functions
    }


def check_platform(report: AuditReport, machine: str) -> AuditReport:
    """Return the report with an error where tag or code are not for ``machine`` (``aarch64``, ``x86_64``)."""
    platforms = (report.tag or "any").rpartition("-")[2].split(".")
    tagged = {wheelfile.machine_of(name) or name for name in platforms if name != "any"}
    problems = [f"the tag {report.tag} is not for {machine}"] if tagged and machine not in tagged else []
    foreign = [item for item in report.files if item.machine != machine]
    if foreign:
        more = f", and {len(foreign) - 1} more files are of other machines" if foreign[1:] else ""
        problems.append(f"{foreign[0].name} is for {foreign[0].machine}, not for {machine}{more}")
    if problems:
        problems[-1] += " (--platform names another)"
    return replace(report, errors=(*report.errors, *map(one_line, problems)))


def verdicts(needs: Needs) -> tuple[CoreVerdict, ...]:
    """Return for every core of cores.toml whether code with these needs runs there."""
    result = []
    for core in core_types():
        has = extensions_of(core.features) | _BASE
        missing = needs.everywhere - has
        perhaps = needs.dispatched - has
        result.append(
            CoreVerdict(
                core=core.name,
                verdict="no" if missing else "only if dispatched" if perhaps else "yes",
                missing=tuple(sorted(missing | perhaps)),
                certain=tuple(sorted(missing)),
            )
        )
    return tuple(result)


def lowest_core(needs: Needs) -> str:
    """Return in words what the code needs for certain, and what it needs unless that is behind dispatch."""
    surely = _minimal(needs.everywhere - _BASE)
    perhaps = _minimal(needs.dispatched - _BASE - implied(needs.everywhere))
    text = "any Armv8.0-A core" if not surely else "a core with " + ", ".join(surely)
    return text + (f"; {', '.join(perhaps)} must be behind dispatch" if perhaps else "")


def _minimal(names: Iterable[str]) -> list[str]:
    names = set(names)
    covered = {other for name in names for other in implied([name]) - {name}}
    return sorted(names - covered)
