from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from armbuild.cli.options import AsJson, Mirror, Traceback, colored
from armbuild.cli.progress import Progress

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add ``armbuild doctor`` to the command line."""
    app.command("doctor")(doctor_command)


def doctor_command(
    *,
    mirror: Mirror = None,
    as_json: AsJson = False,
    verbose: Traceback = False,
) -> int:
    """Show what this machine lacks, and the command that installs it."""
    from armbuild.host.doctor import diagnose  # noqa: PLC0415 - heavy modules load when the command runs

    del verbose  # read by the command line's error handler
    diagnosis = diagnose(mirror=mirror)
    if as_json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        for finding in diagnosis.findings:
            if Progress.quiet and (finding.ok or finding.optional):
                continue
            mark = "ok " if finding.ok else "-  " if finding.optional else "NO "
            print(colored(f"{mark} {finding.name:<15}{finding.found}", sys.stdout))
            if not finding.ok:
                brings = f": apt-get install {' '.join(finding.packages)}" if finding.optional else ""
                print(f"    {'':<15}needed for {finding.needed_for}{brings if finding.packages else ''}")
        if diagnosis.command:
            print(f"\nto install what is missing:\n  {diagnosis.command}")
    return 0 if diagnosis.ok else 1
