"""`armllm convert`: weights in .bin files as safetensors."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer evaluates annotations
from typing import TYPE_CHECKING, Annotated

import typer

from armllm.cli.options import AsJson, Model, Verbose  # noqa: TC001 - typer evaluates annotations

if TYPE_CHECKING:
    from armllm.convert.pickles import Converted


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="convert")(convert_command)


def convert_command(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; it must not exist.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit on the hub.")] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Convert .bin weights to safetensors. Only tensors are read, and no code of the files runs."""
    from armllm.convert.pickles import convert_checkpoint  # noqa: PLC0415 - torch takes seconds, --help should not

    converted = convert_checkpoint(
        model, output, revision=revision, progress=lambda line: print(line, file=sys.stderr)
    )
    if as_json:
        facts = {"folder": str(converted.folder), "tensors": converted.tensors}
        print(json.dumps({"schema": 1, **facts, "bytes": converted.num_bytes}))
    else:
        print(summary(converted))


def summary(converted: Converted) -> str:
    """What was done, in a line."""
    return f"wrote {converted.folder}: {converted.tensors} tensors, {converted.num_bytes / 1e6:,.1f} MB"
