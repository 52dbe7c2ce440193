from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from armbuild.cli import smoke_image
from armbuild.cli.options import AsJson, Mirror, Options, Verbose, colored, proof_option, with_settings

if TYPE_CHECKING:
    from armbuild.wheel.smoke import SmokeReport
    from armbuild.wheel.user_tests import UserTests


def register(app: typer.Typer) -> None:
    """Add ``armbuild smoke`` to the command line."""
    app.command("smoke")(smoke_command)


@with_settings("imports", "command", "requires", "cpu", "sandbox")
def smoke_command(
    wheel: Annotated[
        Path,
        typer.Argument(
            metavar="WHEEL|IMAGE",
            help="A wheel of armllm, another AArch64 wheel with --import or --command, or an image.",
        ),
    ],
    *,
    options: Options,
    timeout: Annotated[
        float, proof_option("--timeout", metavar="SECONDS", min=1, help="The time limit for one CPU.")
    ] = 1200.0,
    engine: Annotated[
        str | None,
        proof_option(
            "--engine", metavar="docker|podman", help="Test an image in a container of this engine."
        ),
    ] = None,
    unsafe: Annotated[
        bool,
        proof_option(
            "--unsafe-no-sandbox",
            help="Run the programs of an image without a sandbox, with all your rights.",
        ),
    ] = False,
    mirror: Mirror = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> int:
    """Test a wheel or an image on each core: by real inference or by your test, natively or under QEMU."""
    from armbuild.image.smoke import is_image  # noqa: PLC0415
    from armbuild.wheel import cpus  # noqa: PLC0415
    from armbuild.wheel.user_tests import UserTests  # noqa: PLC0415

    tests = UserTests(
        imports=tuple(options["imports"] or ()),
        command=options["command"] or "",
        requires=tuple(options["requires"] or ()),
        project=Path.cwd(),
        sandbox=bool(options["sandbox"]),
    )
    names = tuple(options["cpu"] or cpus.default_cpus())
    if not is_image(wheel):
        if engine or unsafe:
            option = "--engine" if engine else "--unsafe-no-sandbox"
            raise typer.BadParameter(f"{option} is for images; a wheel is tested without one")
        report = _smoke_wheel(wheel, names, tests, mirror=mirror, timeout=timeout, verbose=verbose)
        print(json.dumps(report.as_dict(), indent=2) if as_json else colored(table(report), sys.stdout))
        return 0 if report.ok else 1
    _check_image_options(tests, engine=engine, unsafe=unsafe)
    return smoke_image.run(
        wheel, names, mirror=mirror, engine=engine, unsafe=unsafe, as_json=as_json, verbose=verbose
    )


def _check_image_options(tests: UserTests, *, engine: str | None, unsafe: bool) -> None:
    if tests:
        raise typer.BadParameter(
            "--import and --command are for wheels; an image is tested by serving from it"
        )
    if tests.sandbox and (engine or unsafe):
        raise typer.BadParameter(
            f"--sandbox and {'--engine' if engine else '--unsafe-no-sandbox'} exclude each other"
        )
    if engine and unsafe:
        raise typer.BadParameter("--unsafe-no-sandbox is for an image without --engine")


def _smoke_wheel(
    wheel: Path,
    names: tuple[str, ...],
    tests: UserTests,
    *,
    mirror: str | None,
    timeout: float,
    verbose: bool,
) -> SmokeReport:
    from armbuild.cli.progress import Progress, logs  # noqa: PLC0415
    from armbuild.host import cache  # noqa: PLC0415
    from armbuild.wheel import cpus, smoke  # noqa: PLC0415

    smoke.check(wheel, tests)
    cpus.check_names(names)
    progress = Progress()
    with cache.work_folder("smoke") as work, logs(work, shown=verbose):
        with progress.step("smoke", ", ".join(names)):
            report = smoke.smoke_test(
                wheel, names, work, tests=tests, mirror=mirror, timeout=timeout, on_step=progress.note
            )
        if not report.ok:
            cache.keep(work)
    return report


def table(report: SmokeReport) -> str:
    """Return the verdicts as a table, one line per CPU, reasons below."""
    rows: list[tuple[str, ...]] = [("cpu", "verdict", "said", "seconds") if report.tests else ENGINE]
    for result in report.results:
        verdict, seconds = "passed" if result.passed else "FAILED", f"{result.seconds:.1f}"
        if report.tests:
            rows.append((result.cpu, verdict, result.said or "-", seconds))
            continue
        counts: dict[str, int] = {}
        for target in result.kernels.values():
            counts[target] = counts.get(target, 0) + 1
        speed = f"{result.tokens_per_second:.1f}" if result.tokens_per_second else "-"
        kernels = ", ".join(f"{target} {count}" for target, count in sorted(counts.items())) or "-"
        rows.append((result.cpu, verdict, kernels, speed, seconds))
    lines = smoke_image.verdicts(rows, report.results)
    what = "; ".join(report.tests) or f"torch {report.torch}"
    return "\n".join((f"{report.wheel}, Python {report.python}, {what}", *lines))


ENGINE: tuple[str, ...] = ("cpu", "verdict", "kernels", "tokens/s", "seconds")
