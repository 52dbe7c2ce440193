"""An audit report for people."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from armbuild.errors import one_line
from armisa.explanation import width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armbuild.audit.report import AuditReport, ElfReport, Offence


def describe(report: AuditReport, show: int = 10) -> Iterator[str]:
    """Yield verdict, packaging, needs, cores and the first ``show`` offending functions as lines of text.

    Text is wrapped at the terminal's width, in a pipe at 110 columns. Parts of it are untrusted.
    """
    yield from map(one_line, _lines(report, show))


def _lines(report: AuditReport, show: int) -> Iterator[str]:
    yield f"{report.path}: {'passed' if report.ok else 'FAILED'}"
    for error in report.errors:
        yield from _wrapped("  error:      ", error)
    for warning in report.warnings[:show]:
        yield from _wrapped("  warning:    ", warning)
    if len(report.warnings) > show:
        yield f"  warning:    and {len(report.warnings) - show} more"
    yield from _packaging(report)
    yield from _needs(report)
    yield from _offences("above the floor", report.offences if report.floor else (), show)
    if not report.floor:
        yield from _offences("beyond Armv8.0-A", report.offences, show)
    yield from _offences("doubtful", report.doubts, show)


def _packaging(report: AuditReport) -> Iterator[str]:
    parts = sorted((report.parts or {}).items(), key=lambda item: -item[1])
    yield f"  size:       {_bytes(report.size)}" + (f", tag {report.tag}" if report.tag else "")
    if len(parts) > 1:
        yield from _wrapped("  unpacked:   ", ", ".join(f"{name} {_bytes(size)}" for name, size in parts[:8]))
    if report.policy:
        versions = [f"{name}: {values[-1]}" for name, values in report.policy.versions.items() if values]
        yield from _wrapped(
            "  symbols:    ", f"fit {report.policy.name}; newest of {', '.join(versions) or 'none'}"
        )
        if report.policy.outside:
            yield from _wrapped("  outside:    ", f"expects {', '.join(report.policy.outside)} on the system")
    for item in report.files[:8]:
        alignment = f", segments aligned to {item.alignment >> 10} KiB" if item.alignment else ""
        yield from _wrapped("  ELF:        ", f"{item.name}: {item.machine}, {_bytes(item.size)}{alignment}")
        if item.needed:
            yield from _wrapped("              ", f"needs {', '.join(item.needed)}")
        if item.gpu_code:
            yield from _wrapped("              ", f"for GPUs: {_gpu_code(item)}")
    if len(report.files) > 8:
        yield f"  ELF:        and {len(report.files) - 8} more"
    if report.kernel_targets:
        yield f"  kernels:    {', '.join(report.kernel_targets)}"


def _gpu_code(item: ElfReport) -> str:
    targets: dict[str, list[str]] = {}
    for code in item.gpu_code:
        targets.setdefault(code.kind, []).append(code.target)
    return "; ".join(f"{kind} {', '.join(targets[kind])}" for kind in targets)


def _needs(report: AuditReport) -> Iterator[str]:
    if not report.cores:
        return
    yield from _wrapped("  runs on:    ", report.lowest_core)
    for label, names in (
        ("everywhere", report.needs_everywhere),
        ("dispatched", report.needs_dispatched),
        ("guarded", report.needs_guarded),
    ):
        if names:
            yield from _wrapped(f"  {label + ':':<11} ", ", ".join(sorted(names)))
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for verdict in report.cores:
        groups.setdefault((verdict.verdict, verdict.missing, verdict.certain), []).append(verdict.core)
    order = {"yes": 0, "only if dispatched": 1, "no": 2}
    for (answer, missing, certain), cores in sorted(
        groups.items(), key=lambda item: (order[item[0][0]], len(item[0][1]))
    ):
        # For a no, what decides it; the rest may still be behind dispatch.
        lacks = f" [lacks {', '.join(certain or missing)}]" if missing else ""
        yield from _wrapped(f"  {answer}: ", f"{', '.join(cores)}{lacks}")


def _offences(title: str, offences: tuple[Offence, ...], show: int) -> Iterator[str]:
    if not offences:
        return
    yield f"  {title}: {len(offences)} functions" + (f", the first {show}" if len(offences) > show else "")
    # What loading runs comes first: it decides where the wheel dies.
    for item in sorted(offences, key=lambda item: not item.missing & item.function.at_load)[:show]:
        function = item.function
        wanted = item.missing & function.at_load or item.missing
        use = next((use for use in function.uses if use.extensions & wanted), function.uses[0])
        place = f"{item.file}: {function.name} ({function.section}, {function.address:#x})"
        yield f"    {place}"
        doubt = f"; {function.doubt}" if function.doubt else ""
        loads = "; runs when the file is loaded" if use.certain else ""
        if not loads and item.missing & function.unguarded:
            loads = "; no check of the CPU guards it"
        missing = ", ".join(sorted(item.missing))
        yield f"      {use.address:#x}: {use.word:08x}  {use.text} [{missing}]{loads}{doubt}"


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _wrapped(label: str, text: str) -> list[str]:
    # Not rich: its tables end each line with blanks and cut a word that is too long, which greps miss.
    return textwrap.wrap(
        text,
        width(),
        initial_indent=label,
        subsequent_indent=" " * 14,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [label]
