"""`armllm doctor`: what keeps this machine from being as fast as it could be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from armllm.cli.options import AsJson, Verbose, styled

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="doctor")(doctor_command)


def doctor_command(as_json: AsJson = False, verbose: Verbose = False) -> int:  # noqa: ARG001 - main() looks for it
    """Show what would make the engine faster here. The status is 1 if something is missing."""
    from armllm.doctor import examine  # noqa: PLC0415 - torch takes seconds, --help should not

    findings = examine()
    if as_json:
        checks = [
            {"name": one.name, "status": one.status, "found": one.found, "advice": one.advice}
            for one in findings
        ]
        print(json.dumps({"schema": 1, "checks": checks}))
    else:
        width = max(len(one.name) for one in findings)
        for one in findings:
            status = styled(f"{one.status:<5}", one.status)
            print(f"{status} {one.name:<{width}}  {one.found}")
            if one.advice:
                print(f"{'':<5} {'':<{width}}  -> {one.advice}")
    return int(any(one.status == "error" for one in findings))
