from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from armbuild.cli.options import Options, Traceback, with_settings


def register(app: typer.Typer) -> None:
    """Add ``armbuild matrix`` and ``armbuild settings`` to the command line."""
    app.command("matrix")(matrix_command)
    app.command("settings")(settings_command)


@with_settings("python", "cpu")
def matrix_command(
    projects: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PROJECT", help="Folders of projects; default: the current one."),
    ] = None,
    *,
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="github|gitlab|buildkite|json", help="The CI system that reads the output."
        ),
    ] = "json",
    options: Options,
    verbose: Traceback = False,
) -> int:
    """Print one job per project and Python, for a CI system."""
    from armbuild.errors import UsageError  # noqa: PLC0415
    from armbuild.wheel import cpus  # noqa: PLC0415
    from armbuild.wheel import matrix as making  # noqa: PLC0415 - heavy modules load when the command runs

    del verbose  # cli.main looks for it
    if form not in making.FORMATS:
        raise UsageError(f"--format {form}: there are {', '.join(making.FORMATS)}")
    cpus.check_names(options["cpu"] or ())
    found = making.jobs(
        projects or [Path()], os.environ, versions=options["python"] or (), cpus=options["cpu"] or ()
    )
    print(making.render(found, form))
    return 0


def settings_command(
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON schema of [tool.armbuild].")
    ] = False,
    verbose: Traceback = False,
) -> int:
    """Print every setting of a build: option, key of [tool.armbuild], meaning."""
    import json  # noqa: PLC0415

    from armbuild.wheel import settings_reference as known  # noqa: PLC0415 - heavy modules load when the command runs

    del verbose  # cli.main looks for it
    print(json.dumps(known.schema(), indent=2) if as_json else known.reference(), end="\n" if as_json else "")
    return 0
