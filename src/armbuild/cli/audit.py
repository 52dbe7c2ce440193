from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armbuild.cli.options import AsJson, colored, target_option
from armbuild.cli.progress import Progress
from armbuild.errors import UsageError
from armcli.groups import output_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from armbuild.audit import AuditReport, Guard
    from armbuild.image.claims import Claims

PLATFORMS = ("aarch64", "loongarch64", "ppc64le", "riscv64", "x86_64")
"""Machines of 64 bits, little-endian: other code is always refused."""


def register(app: typer.Typer) -> None:
    """Add ``armbuild audit`` to the command line."""
    app.command("audit")(audit_command)


def audit_command(  # noqa: PLR0917 - the options of the command line
    paths: Annotated[
        list[Path], typer.Argument(metavar="WHEEL", help="Wheels, ELF files, folders or images.")
    ],
    floors: Annotated[
        list[str] | None,
        target_option(
            "--floor",
            metavar="TARGET",
            help="Fail if unguarded code needs more than this, such as neoverse-n1 or armv8.2-a+dotprod.",
        ),
    ] = None,
    guard: Annotated[
        list[str] | None,
        target_option(
            metavar="PATTERN=FEATURES",
            help="Functions or sections that may use FEATURES above the floor. May be repeated.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        target_option(metavar="FILE", help="The file with [tool.armbuild.audit]; default: ./pyproject.toml."),
    ] = None,
    sarif: Annotated[
        Path | None,
        output_option(metavar="FILE", help="Write the findings as SARIF 2.1.0, for code-scanning pages."),
    ] = None,
    platform: Annotated[
        str, target_option("--platform", metavar="MACHINE", help="The machine that the code must be for.")
    ] = "aarch64",
    show: Annotated[
        int,
        output_option(metavar="N", min=0, help="How many functions to print of those that need too much."),
    ] = 10,
    as_json: AsJson = False,
    indent: Annotated[
        int | None, output_option(metavar="N", min=1, help="Indent the JSON document by N spaces.")
    ] = None,
    verbose: Annotated[
        bool,
        output_option(
            "--verbose", help="List every function in --json, and print the traceback of an error."
        ),
    ] = False,
) -> int:
    """Check wheels: packaging, symbol versions, and the CPU features that their instructions need.

    Packaging errors always fail. Instructions fail only with --floor.
    """
    from armbuild import audit as api  # noqa: PLC0415 - numpy and auditwheel load only when the command runs
    from armbuild.audit.sarif import sarif_document  # noqa: PLC0415
    from armbuild.audit.text import describe  # noqa: PLC0415
    from armbuild.host import outputs  # noqa: PLC0415

    if floors and len(floors) > 1:
        raise UsageError(f"--floor stands {len(floors)} times: one run checks one floor")
    if platform not in PLATFORMS:
        raise UsageError(f"--platform {platform}: choose from {', '.join(PLATFORMS)}")
    settings = _settings(config)
    floor: str | None = floors[0] if floors else settings.get("floor")
    guards = [*settings.get("guards", ()), *(guard or ())]
    if floor is not None:
        api.parse_floor(floor)
    parsed = [api.parse_guard(item) for item in guards]
    reports: list[AuditReport] = []
    documents: list[dict[str, Any]] = []
    for report, claim in _audits(paths, floor, parsed, platform):
        reports.append(report)
        if as_json:
            facts = report.as_dict(every_function=verbose)
            documents.append({**facts, **({"image": claim.as_dict()} if claim else {})})
        elif not (Progress.quiet and report.ok):
            lines = [*describe(report, show), *(claim.lines() if claim else ())]
            print("\n".join([colored(lines[0], sys.stdout), *lines[1:]]), flush=True)
    ok = all(report.ok for report in reports)
    if as_json:
        print(json.dumps({"schema": 1, "ok": ok, "reports": documents}, indent=indent))
    if sarif is not None:
        content = json.dumps(sarif_document(reports), indent=1).encode()
        outputs.replace_file(sarif, lambda sink: sink.write(content))
    return 0 if ok else 1


def _audits(
    paths: Iterable[Path], floor: str | None, guards: Sequence[Guard], platform: str
) -> Iterator[tuple[AuditReport, Claims | None]]:
    """Audit each path, and each image of an archive of several; of an image come its claims too.

    Of an archive's images one is enough that is for ``platform``.
    """
    from armbuild import audit as api  # noqa: PLC0415
    from armbuild.audit.effort import Effort  # noqa: PLC0415
    from armbuild.audit.verdict import check_platform  # noqa: PLC0415
    from armbuild.image import claims  # noqa: PLC0415

    fits = False
    waiting = [(path, 0, Effort()) for path in paths]
    while waiting:
        path, number, effort = waiting.pop(0)
        report = api.audit_path(
            path, floor=floor, guards=guards, image=number, keep=claims.keep, effort=effort
        )
        claim = claims.read(report) if report.kind == "oci" else None
        if claim:
            report = replace(report, errors=(*report.errors, *claim.errors))
        judged = check_platform(report, platform)
        empty = not report.files and report.images > 1  # such an image is for no machine
        fits = (fits and number > 0) or (judged == report and not empty)
        if not fits and number + 1 >= report.images:
            report = judged
        if number + 1 < report.images:
            waiting.insert(0, (path, number + 1, effort))
        yield report, claim


def _settings(config: Path | None) -> dict[str, Any]:
    """Return ``floor`` and ``guards`` from [tool.armbuild.audit], checked; empty without that table."""
    from armisa.tables import parse_toml  # noqa: PLC0415

    path = config or Path("pyproject.toml")
    if config is None and not path.is_file():
        return {}
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    found = table.get("tool", {}).get("armbuild", {}).get("audit", {})
    guards = found.get("guards", {}) if isinstance(found, dict) else None
    if (
        guards is None
        or set(found) - {"floor", "guards"}
        or not isinstance(found.get("floor", ""), str)
        or not isinstance(guards, dict)
        or not all(isinstance(value, str) for value in guards.values())
    ):
        raise UsageError(
            f'{path}: [tool.armbuild.audit] takes floor = "..." and guards = {{ "PATTERN" = "FEATURES" }}'
        )
    return {
        "floor": found.get("floor"),
        "guards": [f"{pattern}={names}" for pattern, names in guards.items()],
    }
