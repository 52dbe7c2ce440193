"""The ``armbuild`` command. One module per subcommand; heavy imports live inside the commands."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback

import typer

from armbuild.cli import audit, detect, doctor, smoke, wheel
from armbuild.errors import ArmbuildError

try:  # typer carries its own click since 0.26
    from typer._click.exceptions import ClickException
except ImportError:
    from click.exceptions import ClickException

app = typer.Typer(
    name="armbuild",
    help="Build, audit and prove AArch64 wheels on any Linux machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (detect, wheel, audit, smoke, doctor):
    module.register(app)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; every error is one or two lines on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    except ArmbuildError as error:
        return _fail(arguments, str(error), error.status)
    except ClickException as error:
        return _fail(arguments, error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(arguments, "interrupted; nothing was written to the output folder", 130)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output went away, as `| head` does
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            return 0
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(arguments, f"no space left on the device while writing {error.filename or 'a file'}", 3)
        return _fail(arguments, f"{error.filename or 'system'}: {error.strerror or error}", 3)
    except Exception as error:  # noqa: BLE001 - a user never sees a traceback unasked
        return _fail(arguments, f"internal error: {type(error).__name__}: {error} (--verbose shows where)", 70)


def _run(arguments: list[str]) -> int:
    result = app(arguments, standalone_mode=False)
    return result if isinstance(result, int) else 0


def _fail(arguments: list[str], message: str, status: int) -> int:
    if "--verbose" in arguments:
        traceback.print_exc()
    print(f"armbuild: error: {message}", file=sys.stderr)
    if "--json" in arguments:
        print(json.dumps({"schema": 1, "error": message, "status": status}))
    return status
