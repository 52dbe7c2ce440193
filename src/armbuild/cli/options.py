"""Options that several commands share: what goes into the wheel, and how a command reports."""

from typing import Annotated

import typer

Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="TARGET", help="Compile everything for this core and newer."),
]
Bf16 = Annotated[bool | None, typer.Option("--bf16/--no-bf16", help="Kernels for BF16 instructions.")]
Dotprod = Annotated[bool | None, typer.Option("--dotprod/--no-dotprod", help="... for DotProd.")]
Fhm = Annotated[bool | None, typer.Option("--fhm/--no-fhm", help="... for FP16 multiply-add to FP32.")]
I8mm = Annotated[bool | None, typer.Option("--i8mm/--no-i8mm", help="... for int8 matrix products.")]
Sve = Annotated[bool | None, typer.Option("--sve/--no-sve", help="... for SVE.")]

Mirror = Annotated[str | None, typer.Option("--mirror", metavar="URL", help="A Debian archive.")]
PlanOnly = Annotated[bool, typer.Option("--plan", help="Print what would happen; build nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show what the tools say, and where errors arise.")]
Traceback = Annotated[bool, typer.Option("--verbose", help="Show where errors arise.")]
