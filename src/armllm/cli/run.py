"""`armllm run`: complete one prompt."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

import typer

from armllm.cli.options import (
    AsJson,
    EngineCommand,
    Model,
    Verbose,
    sampling_option,
    scheduler_option,
    takes_engine_options,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="run", cls=EngineCommand)(run_command)


@takes_engine_options
def run_command(  # noqa: PLR0917 - typer reads options from parameters
    model: Model,
    prompt: Annotated[
        str, typer.Argument(help="Text to complete; - reads standard input.", metavar="PROMPT")
    ],
    engine: dict[str, Any],
    max_tokens: Annotated[int, sampling_option(help="Most output tokens.")] = 128,
    temperature: Annotated[
        float, sampling_option(help="Temperature of sampling; 0 takes the likeliest token.")
    ] = 1.0,
    top_p: Annotated[
        float, sampling_option(help="Sample from the likeliest tokens with this total probability.")
    ] = 1.0,
    top_k: Annotated[int, sampling_option(help="Sample from this many likeliest tokens; 0 is all.")] = 0,
    seed: Annotated[int | None, sampling_option(help="Seed of sampling.")] = None,
    stop: Annotated[
        list[str] | None, sampling_option(help="Text that ends the output. May be repeated.")
    ] = None,
    max_num_seqs: Annotated[int, scheduler_option(hidden=True)] = 1,
    ignore_eos: Annotated[
        bool, sampling_option("--ignore-eos", help="Continue after the end token.")
    ] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Complete a prompt."""
    from armllm.api.llm import LLM  # noqa: PLC0415 - torch takes seconds, --help should not
    from armllm.sampling_params import SamplingParams  # noqa: PLC0415

    text = sys.stdin.read() if prompt == "-" else prompt
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
        ignore_eos=ignore_eos,
    )
    llm = LLM(model, max_num_seqs=max_num_seqs, **engine)
    (output,) = llm.generate(text, params, use_tqdm=not as_json and sys.stderr.isatty())
    print(json.dumps({"schema": 1, **dataclasses.asdict(output)}) if as_json else output.outputs[0].text)
