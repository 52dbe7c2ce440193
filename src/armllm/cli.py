"""The ``armllm`` command. Everything heavy is imported inside the commands."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from typing import Annotated, Any

import typer

from armllm.errors import ArmllmError

try:  # typer carries its own click since 0.26
    from typer._click.exceptions import ClickException
except ImportError:
    from click.exceptions import ClickException  # type: ignore[assignment]

INTERRUPTED = 130

app = typer.Typer(
    name="armllm",
    help="Run large language models on Arm CPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[str, typer.Argument(help="Folder of a Hugging Face checkpoint.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]


@app.command()
def run(  # noqa: PLR0917 - typer reads options from parameters
    model: Model,
    prompt: Annotated[str, typer.Argument(help="Text to complete; - reads it from standard input.")],
    dtype: Annotated[str, typer.Option(help="auto, float32 or bfloat16.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Prompt and output tokens together.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Output tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Draw from the likeliest tokens of this mass.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many tokens; 0 is all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")
    ] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end token.")] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Complete one prompt."""
    from armllm.engine.llm import LLM  # noqa: PLC0415 - torch takes seconds, --help should not
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
    llm = LLM(model, dtype=dtype, max_model_len=max_model_len, max_num_seqs=1)
    (output,) = llm.generate(text, params, use_tqdm=not as_json and sys.stderr.isatty())
    print(json.dumps({"schema": 1, **dataclasses.asdict(output)}) if as_json else output.outputs[0].text)


@app.command()
def info(model: Model, as_json: AsJson = False, verbose: Verbose = False) -> None:  # noqa: ARG001
    """Tell what a checkpoint is, after checking that all its tensors are there."""
    from armllm.models.inspect import inspect  # noqa: PLC0415 - torch takes seconds, --help should not

    facts: dict[str, Any] = inspect(model)
    if as_json:
        print(json.dumps({"schema": 1, **facts}))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value:,}" if isinstance(value, int) else f"{name:<{width}}  {value}")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; every error is one or two lines on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if app(arguments, standalone_mode=False) == INTERRUPTED:
            raise KeyboardInterrupt  # noqa: TRY301 - typer has caught it and made it a return value
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user never sees a traceback unasked
        if "--verbose" in arguments:
            traceback.print_exc()
        message, status = _explain(error)
        print(f"armllm: error: {message}", file=sys.stderr)
        if "--json" in arguments:
            print(json.dumps({"schema": 1, "error": message, "status": status}))
        return status
    return 0


def _explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user, and the exit status."""
    if isinstance(error, ArmllmError):
        return str(error), error.status
    if isinstance(error, ClickException):
        return error.format_message(), 2
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "interrupted", INTERRUPTED
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed: pip install 'armllm[engine]'", 3
    if isinstance(error, OSError):
        return f"{error.filename or 'system'}: {error.strerror or error}", 3
    return f"internal error: {type(error).__name__}: {error} (--verbose shows where)", 70
