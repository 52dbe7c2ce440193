from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer

from armbuild.cli.options import AsJson, Traceback


def register(app: typer.Typer) -> None:
    """Add ``armbuild index`` to the command line."""
    app.command("index")(index_command)


def index_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of the index; it need not exist.")
    ],
    wheels: Annotated[
        list[Path] | None, typer.Argument(metavar="WHEEL", help="Wheels to add; default: DIR/*.whl.")
    ] = None,
    *,
    commit: Annotated[
        str, typer.Option("--commit", metavar="SHA", help="The commit of wheels without a provenance file.")
    ] = "",
    channel: Annotated[
        list[str] | None,
        typer.Option(
            "--channel",
            metavar="latest|nightly",
            help="The link that will point to the commit of the wheels.",
        ),
    ] = None,
    as_json: AsJson = False,
    verbose: Traceback = False,
) -> int:
    """Write a static package index that pip and uv install from, over HTTP or as files."""
    from armbuild import index as indexing  # noqa: PLC0415 - heavy modules load when the command runs
    from armbuild.errors import UsageError  # noqa: PLC0415

    del verbose  # cli.main looks for it
    for name in channel or ():
        if name not in indexing.CHANNELS:
            raise UsageError(f"--channel {name}: there are {' and '.join(indexing.CHANNELS)}")
    listed = wheels or sorted(folder.glob("*.whl"))
    if not listed and not (folder / indexing.STATE).is_file():
        raise UsageError(f"{folder}: no wheels there and none named")
    added = indexing.add(folder, listed, commit=commit, channels=channel or ())
    if as_json:
        print(json.dumps(added.as_dict(), indent=2))
        return 0
    for name in added.new:
        print(f"added  {name}")
    for name in added.known:
        print(f"known  {name}")
    print(f"{added.total} files in {added.as_dict()['simple']}")
    return 0
