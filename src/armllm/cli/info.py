"""`armllm info`: what a checkpoint is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from armllm.cli.options import AsJson, Model, Verbose  # noqa: TC001 - typer evaluates annotations

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="info")(info_command)


def info_command(model: Model, as_json: AsJson = False, verbose: Verbose = False) -> None:  # noqa: ARG001
    """Check and describe a checkpoint."""
    from armllm.engine.inspection import inspect_checkpoint  # noqa: PLC0415 - torch takes seconds, --help should not

    facts: dict[str, Any] = inspect_checkpoint(model)
    if as_json:
        print(json.dumps({"schema": 1, **facts}))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value}")
