from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add ``armbuild audit`` to the command line."""
