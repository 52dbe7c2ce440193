from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from armbuild.cli.options import colored
from armbuild.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from armbuild.image.smoke import Report, Result
    from armbuild.wheel.verdict import CpuResult


def run(
    path: Path,
    names: tuple[str, ...],
    *,
    mirror: str | None,
    engine: str | None,
    unsafe: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Serve from an image on each core and print the verdicts; the rest of `armbuild smoke`."""
    from armbuild.cli.progress import Progress, logs  # noqa: PLC0415
    from armbuild.host import cache  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.image import smoke  # noqa: PLC0415

    progress = Progress()
    with cache.work_folder("smoke-image") as work, logs(work, shown=verbose):
        try:
            with progress.step("smoke", ", ".join(names)):
                report = smoke.smoke_test(
                    path, names, work, mirror=mirror, engine=engine, unsafe=unsafe, on_step=progress.note
                )
            if not report.ok:
                cache.keep(work)
        finally:
            smoke.discard(work)
    print(json.dumps(report.as_dict(), indent=2) if as_json else colored(table(report), sys.stdout))
    return 0 if report.ok else 1


def table(report: Report) -> str:
    """Return the verdicts as a table, one line per CPU, reasons below."""
    rows: list[tuple[str, ...]] = [("cpu", "verdict", "ready", "first token", "seconds")]
    for result in report.results:
        times = [
            f"{seconds:.1f} s" if seconds is not None else "-"
            for seconds in (result.ready_seconds, result.first_token_seconds)
        ]
        rows.append((result.cpu, "passed" if result.passed else "FAILED", *times, f"{result.seconds:.1f}"))
    lines = verdicts(rows, report.results)
    surroundings = ", ".join(dict.fromkeys(result.surroundings for result in report.results))
    return "\n".join((one_line(f"{report.image}, {report.digest[:19]}, {surroundings}"), *lines))


def verdicts(rows: Sequence[Sequence[str]], results: Iterable[Result | CpuResult]) -> list[str]:
    """Return the rows in columns of equal width, then why a CPU did not pass."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return lines + [one_line(f"{result.cpu}: {result.reason}") for result in results if result.reason]
