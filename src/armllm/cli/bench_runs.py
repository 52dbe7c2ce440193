"""`armllm bench compare` and `armllm bench suite`: what is done with several runs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from armllm.cli.options import AsJson, Verbose  # noqa: TC001 - typer evaluates annotations
from armllm.errors import RequestError

if TYPE_CHECKING:
    from armllm.bench.suite import Case


def register(bench: typer.Typer) -> None:
    """Add the commands."""
    bench.command(name="compare")(compare_command)
    bench.command(name="suite")(suite_command)


def compare_command(
    results: Annotated[list[Path], typer.Argument(help="Files of --output-json or --save-result.")],
    plot: Annotated[
        Path | None,
        typer.Option(help="File of a plot of all runs relative to the first: .png, .svg or .pdf."),
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Compare runs with the first one, in a table and a plot."""
    from armllm.bench.compare import as_table, compare_results, draw_comparison  # noqa: PLC0415

    if len(results) < 2:
        raise RequestError("give two files or more: the first is what the others are compared with")
    figures = compare_results(results)
    stems = [path.stem for path in results]
    names = stems if len(set(stems)) == len(stems) else [str(path) for path in results]
    if plot is not None:
        draw_comparison(figures, names, plot)
        print(f"wrote {plot}", file=sys.stderr)
    if as_json:
        rows = [
            {"figure": one.label, "values": one.values, "higher_is_better": one.higher} for one in figures
        ]
        print(json.dumps({"schema": 1, "runs": names, "figures": rows}))
    else:
        print(as_table(figures, names))


def suite_command(  # noqa: PLR0917 - typer reads options from parameters
    cases: Annotated[Path, typer.Argument(help="A JSON file of cases, in the form of vLLM's.")],
    model_filter: Annotated[str | None, typer.Option(help="Only cases of this model.")] = None,
    dtype_filter: Annotated[str | None, typer.Option(help="Only cases with this dtype.")] = None,
    tier_filter: Annotated[str | None, typer.Option(help="Only cases of this tier.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands and run none.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for a result file per case.")] = Path(
        "results"
    ),
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Run a suite of benchmarks. A case that fails does not stop the others; the status is then 1."""
    from armllm.bench.suite import read_suite, run_case  # noqa: PLC0415

    wanted = [
        case
        for case in read_suite(cases, output)
        if model_filter in (None, case.model)
        and dtype_filter in (None, case.dtype)
        and tier_filter in (None, case.tier)
    ]
    if not wanted:
        raise RequestError(f"{cases} has no such case: see --model-filter, --dtype-filter and --tier-filter")
    if not dry_run:
        output.mkdir(parents=True, exist_ok=True)
    failed = []
    for number, case in enumerate(wanted, 1):
        print(f"# {number} of {len(wanted)}: {case.name}", flush=True)
        print(_commands(case), flush=True)
        if not dry_run and run_case(case):
            failed.append(case.name)
    if failed:
        print(
            f"armllm: error: {len(failed)} of {len(wanted)} cases failed: {', '.join(failed)}",
            file=sys.stderr,
        )
    return int(bool(failed))


def _commands(case: Case) -> str:
    """As a shell runs them."""
    variables = "".join(f"{name}={shlex.quote(value)} " for name, value in case.environment.items())
    lines = [] if case.server is None else [f"{variables}armllm {shlex.join(case.server)} &"]
    lines += [f"{variables if case.server is None else ''}armllm {shlex.join(one)}" for one in case.clients]
    return "\n".join([*lines, *(["kill $!"] if case.server is not None else [])])
