"""`armllm pack`: quantized weights in the order of a CPU's kernels, which load by mapping."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003 - typer evaluates annotations
from typing import Annotated

import typer

from armllm.checkpoint.scheme import SCHEMES
from armllm.cli.options import AsJson, Model, Quiet, Verbose  # noqa: TC001 - typer evaluates annotations


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="pack")(pack_command)


def pack_command(  # noqa: PLR0917 - a list of options
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write; it must not exist.")],
    target: Annotated[
        str, typer.Option(help="CPU to pack for, a name of `armbuild detect --list`.")
    ] = "native",
    quantization: Annotated[
        str | None,
        typer.Option(help=f"Round the weights first: {', '.join(SCHEMES)}."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibrate", help="Text file by which --quantization is calibrated."),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,  # noqa: ARG001 - its callback hides the progress
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Pack quantized weights for a CPU. The result is a folder that loads by mapping."""
    from armllm.convert.pack import pack_checkpoint  # noqa: PLC0415 - torch takes seconds, --help should not

    written = pack_checkpoint(
        model,
        output,
        target=target,
        quantization=quantization,
        calibration=calibration,
    )
    if as_json:
        facts = {"folder": str(written.folder), "target": written.target, "matrices": written.matrices}
        print(json.dumps({"schema": 1, **facts, "bytes": written.num_bytes}))
        return
    print(
        f"wrote {written.folder}: {written.matrices} matrices for {written.target},"
        f" {written.num_bytes / 1e6:,.1f} MB"
    )
    if written.rounding_errors:
        print(
            f"{len(written.rounding_errors)} matrices had to be rounded again,"
            f" relative error at most {max(written.rounding_errors):.2g}"
        )
