"""`armllm collect-env`: what a report of a problem should have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from armllm.cli.options import AsJson, Verbose  # noqa: TC001 - typer evaluates annotations

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="collect-env")(collect_env_command)


def collect_env_command(as_json: AsJson = False, verbose: Verbose = False) -> None:  # noqa: ARG001
    """Print versions, CPU, kernels and variables for a bug report. Secrets are left out."""
    from armllm.doctor import describe_environment  # noqa: PLC0415 - torch takes seconds, --help should not

    sections = describe_environment()
    if as_json:
        print(json.dumps({"schema": 1, **sections}))
        return
    for title, lines in sections.items():
        print(f"{title}:")
        width = max(map(len, lines), default=0)
        for name, value in lines.items():
            print(f"  {name:<{width}}  {value}")
