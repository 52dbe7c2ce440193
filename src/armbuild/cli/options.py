"""Options that several commands share: the settings of a wheel build, and how a command reports."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from armbuild.cli.progress import Progress
from armbuild.wheel import settings
from armcli.groups import option_of, output_option

if TYPE_CHECKING:
    from armbuild.wheel.settings import Setting

build_option, target_option, proof_option, _ = map(option_of, settings.GROUPS)


def _check_mirror(mirror: str | None) -> str | None:
    if mirror:
        from armbuild.target import debian  # noqa: PLC0415 - only where there is one

        debian.check_address(mirror)
    return mirror


Mirror = Annotated[
    str | None,
    build_option(
        "--mirror",
        callback=_check_mirror,
        metavar="URL",
        help="The Debian archive to use; default: that of this machine's apt sources, else Debian's.",
    ),
]
PlanOnly = Annotated[
    bool,
    output_option("--plan", help="Print what would happen; build nothing."),
]
AsJson = Annotated[bool, output_option("--json", help="Print one JSON document.")]
Verbose = Annotated[
    bool,
    output_option("--verbose", help="Print the output of tools, and the traceback of an error."),
]


_VERDICTS = re.compile(
    r"^(?:ok|NO)(?= )|(?<=: )(?:passed|FAILED)$|(?<=  )(?:passed|FAILED)(?=  )"
    r"|(?<=^  )(?:proven|audited, not proven)",
    re.MULTILINE,
)
"""As the commands print them: at the start of a line, at its end, or in a column."""


def colored(text: str, stream: TextIO) -> str:
    """Return what a command prints with its verdicts in color, if ``stream`` is a terminal that wants it."""
    if not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    colors = {"NO": "red", "FAILED": "red", "audited, not proven": "yellow"}
    return _VERDICTS.sub(lambda match: typer.style(match[0], fg=colors.get(match[0], "green")), text)


def _hide_progress(quiet: bool) -> bool:
    if quiet:
        Progress.quiet = True
    return quiet


Quiet = Annotated[
    bool,
    output_option(
        "--quiet",
        "-q",
        help="Print only errors and the result.",
        callback=_hide_progress,
    ),
]
"""Every command gets this option of the program's; Progress has its value."""

Traceback = Annotated[bool, output_option("--verbose", help="Print the traceback of an error.")]

Command = Callable[..., int]
Options = Mapping[str, Any]
"""Field of Settings -> value, None for an option that is not there."""


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Give a command the options of the settings ``names``, by default of all.

    The command takes their values as ``options``.
    """
    found = [setting for setting in settings.ALL if not names or setting.name in names]

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(*arguments: Any, **values: Any) -> int:
            options = {setting.name: values.pop(setting.name) for setting in found}
            return command(*arguments, options=options, **values)

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
        added = [_parameter(setting) for setting in found]
        place = sum(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in own)
        parameters = [*own[:place], *added, *own[place:]]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    kinds: dict[type, Any] = {bool: bool | None, tuple: list[str] | None, Path: Path | None, str: str | None}
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kinds[setting.type], _option(setting)],
    )


def _option(setting: Setting) -> Any:
    about = setting.about
    names = [f"--{setting.key}/--no-{setting.key}"] if setting.type is bool else [f"--{setting.key}"]
    repeated = " May be repeated." if setting.type is tuple else ""
    return option_of(about.group)(
        *names,
        *([about.short] if about.short else []),
        metavar=setting.metavar.replace("|", " | ") if setting.metavar else None,  # to wrap between them
        help=about.help + repeated,
    )
