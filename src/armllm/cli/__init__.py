"""The ``armllm`` command. One module per subcommand, imported when it is named; heavy imports are inside."""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Annotated

import typer

import armllm
from armcli.groups import Program
from armllm.cli.commands import Commands
from armllm.cli.options import Quiet  # noqa: TC001 - typer evaluates annotations
from armllm.errors import ArmllmError
from armllm.progress import progress
from armllm.utils.options import dashed

try:  # typer carries its own click since 0.26
    from typer._click.exceptions import ClickException, NoArgsIsHelpError
except ImportError:
    from click.exceptions import ClickException, NoArgsIsHelpError  # type: ignore[assignment]

INTERRUPTED = 130
# What to install for a module that is missing; the rest belongs to the engine.
EXTRAS = {
    "starlette": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "pydantic": "serve",
    "prometheus_client": "serve",
    "matplotlib": "bench",
    "httpx2": "bench",
}

app = Program(
    name="armllm",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich takes [brackets] for markup, and cuts names to fit its tables
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"armllm {armllm.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", "-v", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run large language models on Arm CPUs."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; every error is one or two lines on stderr."""
    arguments = [dashed(argument) for argument in (sys.argv[1:] if arguments is None else arguments)]
    progress.visible = True
    try:
        status = app(arguments, prog_name="armllm", standalone_mode=False)
        if status == INTERRUPTED:
            raise KeyboardInterrupt  # noqa: TRY301 - typer has caught it and made it a return value
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    except NoArgsIsHelpError as error:  # its message is the help, which rich has printed already
        if error.message:
            error.show()
        return 2
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user never sees a traceback unasked
        if "--verbose" in arguments:
            traceback.print_exc()
        message, status = _explain(error)
        kind = "" if status == INTERRUPTED else "error: "
        print(f"armllm: {kind}{message}", file=sys.stderr)
        if "--json" in arguments:
            print(json.dumps({"schema": 1, "error": message, "status": status}))
        return status
    finally:
        progress.visible = False
    return status if isinstance(status, int) else 0


def _explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user, and the exit status."""
    match error:
        case ArmllmError():
            return str(error), error.status
        case ClickException():
            return " ".join(error.format_message().split()), 2
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", INTERRUPTED
        case RecursionError():
            return "the input is nested too deeply: lists and objects in one another", 2
        case ModuleNotFoundError() | OSError():
            return _explain_system(error), 3
        case _:
            return f"internal error: {type(error).__name__}: {error} (--verbose shows where)", 70


def _explain_system(error: ModuleNotFoundError | OSError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'system'}: {error.strerror or error}"
    module = (error.name or "").split(".", 1)[0]
    return f"{module} is not installed: pip install 'armllm[{EXTRAS.get(module, 'engine')}]'"
