"""`armllm quantize`: a checkpoint with weights of 8 or 4 bits."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates annotations
from typing import TYPE_CHECKING, Annotated

import typer

from armllm.checkpoint.scheme import SCHEMES
from armllm.cli.options import AsJson, Model, Quiet, Verbose  # noqa: TC001 - typer evaluates annotations

if TYPE_CHECKING:
    from armllm.convert.write import Written


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="quantize")(quantize_command)


def quantize_command(  # noqa: PLR0917 - a list of options
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; it must not exist.")],
    scheme: Annotated[str, typer.Option(help=f"How to round: {', '.join(SCHEMES)}.")],
    calibrate: Annotated[
        Path | None,
        typer.Option(help="Text file by which the rounding is calibrated."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,  # noqa: ARG001 - its callback hides the progress
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Round the weights of a checkpoint. The result is in the compressed-tensors format."""
    from armllm.convert.write import quantize_checkpoint  # noqa: PLC0415 - torch takes seconds, --help should not

    written = quantize_checkpoint(
        model,
        output,
        scheme,
        calibrate,
    )
    if as_json:
        facts = {"folder": str(written.folder), "matrices": written.matrices}
        sizes = {"bytes_before": written.bytes_before, "bytes_now": written.bytes_now}
        print(json.dumps({"schema": 1, **facts, **sizes}))
    else:
        print(summary(written))


def summary(written: Written) -> str:
    """What was done, in a line."""
    matrices = ", ".join(f"{count} matrices as {scheme}" for scheme, count in written.matrices.items())
    before, now = (size / 1e6 for size in (written.bytes_before, written.bytes_now))
    return f"wrote {written.folder}: {matrices}; {before:,.1f} MB became {now:,.1f} MB"
