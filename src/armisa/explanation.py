"""What a person wants to know about a CPU, in lines of text."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

from armisa.flags import COMPILERS, compiler_flags
from armisa.kernels import better_targets, kernel_targets
from armisa.tables import what_it_buys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from armisa.model import Isa

# What matters to inference, best first; all other features are listed by name only.
_MATTERS = (
    "sme2",
    "sme",
    "i8mm",
    "bf16",
    "asimddp",
    "asimdfhm",
    "asimdhp",
    "sve2",
    "sve",
    "svebf16",
    "svei8mm",
    "atomics",
)
_PIPE_WIDTH = 110
# What the process, the engine and the operating system need beside weights and KV cache.
_RESERVE = 2 << 30


def explain(isa: Isa, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines of ``armbuild detect`` for people; ``verbose`` names every op and further feature."""
    yield from _identity(isa)
    yield ""
    yield from _features(isa, verbose=verbose)
    yield ""
    yield from _kernels(isa, verbose=verbose)
    yield ""
    yield from _advice(isa)
    for note in isa.notes:
        yield from _wrapped("note:     ", note)


def _identity(isa: Isa) -> Iterator[str]:
    yield f"machine:  {isa.machine}, {isa.architecture or 'architecture level unknown'}" + (
        " (emulated)" if isa.emulated else ""
    )
    if isa.machine == "x86_64":
        yield "          not an Arm CPU: development kernels run here; --target NAME describes an Arm CPU"
    mixed = len({core.performance for core in isa.cores}) > 1
    for core in isa.cores:
        kind = "" if not mixed else ", performance cores" if core.performance else ", efficiency cores"
        numbers = (
            f"implementer 0x{core.implementer:02x}, part 0x{core.part:03x}, r{core.variant}p{core.revision}"
        )
        yield f"cores:    {f'{core.count} x ' if core.count else ''}{core.label} ({numbers}){kind}"
    if len(isa.products) == 1:
        yield f"product:  {isa.products[0]}"
    elif isa.products:
        yield from _wrapped("product:  ", f"one of {', '.join(isa.products)}, as far as the cores tell")
    for unit, bits in (("SVE", isa.sve_vector_bits), ("SME", isa.sme_vector_bits)):
        if bits:
            yield f"{unit}:      vectors of {bits} bits"


def _features(isa: Isa, *, verbose: bool) -> Iterator[str]:
    if isa.machine != "aarch64":
        named = {
            name for entry in kernel_targets() if entry.machine == isa.machine for name in entry.features
        }
        for label, names in (("has:      ", named & isa.features), ("lacks:    ", named - isa.features)):
            if names:
                yield from _wrapped(label, ", ".join(sorted(names)))
        yield from _further(isa.features - named, verbose=verbose)
        return
    for name in _MATTERS:
        if name in isa.features:
            yield f"has:      {name:<9} {what_it_buys()[name]}"
    for name in _MATTERS:
        if name not in isa.features:
            yield f"lacks:    {name:<9} {what_it_buys()[name]}"
    yield from _further(isa.features - set(_MATTERS), verbose=verbose)


def _further(rest: frozenset[str], *, verbose: bool) -> Iterable[str]:
    listed = ", ".join(sorted(rest)) or "none" if verbose else f"{len(rest)} features (--verbose names them)"
    return _wrapped("further:  ", listed)


def _kernels(isa: Isa, *, verbose: bool) -> Iterator[str]:
    """Yield one line per kernel target with its ops, and what would make the ops better."""
    by_target: dict[str, list[str]] = {}
    for op, target in isa.kernels().items():
        by_target.setdefault(target, []).append(op)
    for target in [entry.name for entry in reversed(kernel_targets())]:
        ops = by_target.get(target)
        if ops:
            listed = ", ".join(ops) if verbose else f"{len(ops)} op{'s' if ops[1:] else ''}"
            yield from _wrapped(f"kernels:  {target:<9} ", listed)
            better = (
                better_targets(op, target, isa.features, isa.machine, isa.sve_vector_bits) for op in ops
            )
            for need in sorted(set(itertools.chain.from_iterable(better))):
                yield f"          {'':<9} better: {need}"


def _advice(isa: Isa) -> Iterator[str]:
    if isa.threads:
        binding = f", bound to CPUs {isa.binding}" if isa.binding else ""
        nodes = f" (one of {isa.numa_nodes} NUMA nodes)" if (isa.numa_nodes or 1) > 1 else ""
        variables = f"OMP_NUM_THREADS={isa.threads}"
        if isa.binding:
            variables += f" VLLM_CPU_OMP_THREADS_BIND={isa.binding}"
        yield f"threads:  {isa.threads}{binding}{nodes}: {variables}"
    if isa.memory_bytes:
        fits = max(isa.memory_bytes - _RESERVE, 0) >> 30
        yield (
            f"memory:   {isa.memory_bytes / (1 << 30):.1f} GiB: weights and KV cache fit in {fits} GiB"
            " (set the cache's part with VLLM_CPU_KVCACHE_SPACE)"
        )
    for compiler in COMPILERS:
        yield from _wrapped(f"{compiler + ':':<10}", compiler_flags(isa, compiler), breaks=False)


def _wrapped(label: str, text: str, *, breaks: bool = True) -> Iterable[str]:
    if not breaks:
        return [label + text]
    return textwrap.wrap(text, width(), initial_indent=label, subsequent_indent=" " * len(label))


def width() -> int:
    """Return how many columns text for people may have: the terminal's, in a pipe 110."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _PIPE_WIDTH
