from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from armbuild.smoke import SmokeReport


def register(app: typer.Typer) -> None:
    """Add ``armbuild smoke`` to the command line."""
    app.command("smoke")(smoke)


def smoke(
    wheel: Annotated[Path, typer.Argument(help="An AArch64 wheel of armllm.")],
    *,
    cpu: Annotated[
        list[str] | None, typer.Option("--cpu", metavar="CPU", help="A core to run on; may be repeated.")
    ] = None,
    mirror: Annotated[str | None, typer.Option("--mirror", metavar="URL", help="A Debian archive.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show what the tools say, and where errors arise.")
    ] = False,
) -> int:
    """Run a wheel's real inference on each core: natively on AArch64, under QEMU elsewhere."""
    from armbuild import cache, debian, process  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild import smoke as smoking  # noqa: PLC0415
    from armbuild.cli.progress import Progress  # noqa: PLC0415

    if mirror:
        debian.check_address(mirror)
    process.interrupt_on_termination()
    progress = Progress()
    smoking.check(wheel)
    names = tuple(cpu or smoking.default_cpus())
    smoking.check_names(names)
    with cache.work_folder("smoke") as work:
        try:
            with progress.step("smoke", ", ".join(names)):
                report = smoking.smoke(wheel, names, work, mirror=mirror, on_step=progress.note)
            if not report.ok:
                cache.keep(work)
        finally:
            if verbose:
                for log in sorted(work.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text(errors='replace')}", file=sys.stderr)
    print(json.dumps(report.as_dict(), indent=2) if as_json else table(report))
    return 0 if report.ok else 1


def table(report: SmokeReport) -> str:
    """Return the verdicts as a table, one line per CPU, reasons below."""
    rows = [("cpu", "verdict", "kernels", "tokens/s", "seconds")]
    for result in report.results:
        counts: dict[str, int] = {}
        for target in result.kernels.values():
            counts[target] = counts.get(target, 0) + 1
        speed = f"{result.tokens_per_second:.1f}" if result.tokens_per_second else "-"
        kernels = ", ".join(f"{target} {count}" for target, count in sorted(counts.items())) or "-"
        rows.append(
            (result.cpu, "passed" if result.passed else "FAILED", kernels, speed, f"{result.seconds:.1f}")
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [f"{result.cpu}: {result.reason}" for result in report.results if result.reason]
    return "\n".join((f"{report.wheel}, Python {report.python}, torch {report.torch}", *lines))
