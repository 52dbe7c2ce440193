from __future__ import annotations

import json
from typing import Annotated

import typer

from armbuild.cli.options import AsJson, Traceback


def register(app: typer.Typer) -> None:
    """Add ``armbuild cache`` to the command line."""
    app.command("cache")(cache_command)


def cache_command(
    *,
    clear: Annotated[
        list[str] | None,
        typer.Option("--clear", metavar="PART|all", help="Remove this part of the cache. May be repeated."),
    ] = None,
    as_json: AsJson = False,
    verbose: Traceback = False,
) -> int:
    """Show what the cache holds, or remove parts of it. --clear waits for builds that use the part."""
    from armbuild.host import cache as caching  # noqa: PLC0415 - heavy modules load when the command runs

    del verbose  # cli.main looks for it
    freed = {name: caching.remove(name) for name in caching.expand(clear or ())}
    parts = caching.parts()
    if as_json:
        document = {"schema": 1, "ok": True, "folder": str(caching.root()), "parts": parts, "removed": freed}
        print(json.dumps(document, indent=2))
        return 0
    print(caching.root())
    for name, size in freed.items():
        print(f"removed  {name:<18}{size / 1e6:10.1f} MB")
    for name, size in sorted(parts.items(), key=lambda item: -item[1]):
        print(f"  {name:<18}{size / 1e6:10.1f} MB")
    print(f"  {'together':<18}{sum(parts.values()) / 1e6:10.1f} MB")
    return 0
