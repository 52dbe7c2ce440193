"""The ``armbuild`` command. One module per subcommand; heavy imports live inside the commands."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import armbuild
from armbuild.cli import (
    audit,
    cache,
    detect,
    docker,
    doctor,
    index,
    manylinux_image,
    matrix,
    smoke,
    verify,
    wheel,
)
from armbuild.cli.options import Quiet
from armbuild.cli.progress import Progress
from armbuild.errors import ArmbuildError, one_line
from armbuild.host import failure
from armcli.groups import Program
from armisa.errors import IsaError

try:  # typer carries its own click since 0.26
    from typer._click.exceptions import ClickException, NoArgsIsHelpError
except ImportError:
    from click.exceptions import ClickException, NoArgsIsHelpError  # type: ignore[assignment]

INTERRUPTED = 130
MAX_LINES = 20
"""Of an error."""

app = Program(
    name="armbuild",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"armbuild {armbuild.version()}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Build, audit and test AArch64 wheels on any Linux machine."""


for module in (detect, wheel, audit, smoke, verify, index, docker, manylinux_image, matrix, cache, doctor):
    module.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; every error is one or two lines on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    Progress.quiet = False  # until -q says so
    try:
        result = _program()(arguments, prog_name="armbuild", standalone_mode=False)
        if result == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt  # noqa: TRY301
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except NoArgsIsHelpError as error:  # its message is the help, which rich has printed already
        if error.message:
            error.show()
        return 2
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user never sees a traceback unasked
        if "--verbose" in arguments:
            traceback.print_exc()
        message, status = explain(error)
        plain = "\n".join(map(one_line, message.split("\n")[:MAX_LINES]))  # parts of it may be untrusted
        kind = "" if status == INTERRUPTED else "error: "
        print(f"armbuild: {kind}{plain}", file=sys.stderr)
        if "--json" in arguments:
            print(json.dumps({"schema": 1, "error": message, "status": status}))
        return status
    return result if isinstance(result, int) else 0


def _program() -> Any:
    """Return the command line, with -q everywhere. Where a table would cut names, help is plain lines."""
    program: Any = typer.main.get_command(app)
    (quiet,) = (option for option in program.params if option.name == "quiet")
    quiet.expose_value = False
    columns = shutil.get_terminal_size().columns
    context = typer.Context(program, **program.context_settings)
    for command, least in ((program, 60), *((command, 100) for command in program.commands.values())):
        command.params += [quiet] if command is not program else []
        for option in command.get_params(context):
            if getattr(option, "is_flag", False):
                option.metavar = ""  # else a table says <bool>, as if one had to follow
        if columns < least:
            command.rich_markup_mode = None
    return program


def explain(error: BaseException) -> tuple[str, int]:
    """What to tell the user about ``error``, and the exit status that goes with it."""
    match error:
        case ArmbuildError() | IsaError():
            return str(error), error.status
        case ClickException():
            return _explain_usage(error), 2
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted; nothing half-written is left", INTERRUPTED
        case RecursionError():
            return "the input is nested too deeply: folders, or values of a document, in one another", 2
        case OSError():
            return _explain_system(error), 3
        case _:
            return f"internal error: {type(error).__name__}: {error} (--verbose shows where)", 70


def _explain_usage(error: ClickException) -> str:
    """What typer says, and where too much or too little is said the command that shows what there is."""
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or not message.startswith(("Missing ", "Got unexpected ")):
        return message
    return f"{message.rstrip('.')} (`{context.command_path} --help` shows what there is)"


def _full_folder() -> str:
    """Return which of the folders that commands write to is full, for an error that names no file."""
    from armbuild.host.cache import root  # noqa: PLC0415 - a good end needs it not

    folders = [failure.temporary_folder(), Path()]
    with suppress(ArmbuildError):
        folders.insert(1, root())
    there = [folder.absolute() for folder in folders if folder.is_dir()]
    left = {shutil.disk_usage(folder).free: folder for folder in reversed(there)}
    return f"a file in {left[min(left)]}" if min(left) < failure.FULL else "a file"


def _explain_system(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = error.filename2 or error.filename or _full_folder()  # of a copy, the second is written
        return f"no space left on the device while writing {where}: `armbuild cache` shows what it holds"
    return f"{error.filename or 'system'}: {error.strerror or error}"
