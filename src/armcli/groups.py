"""Options in groups: each names its own where it is described, and `--help` shows a section for each."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUT = "Output"
VALUES: dict[Any, str] = {str: "TEXT", list[str]: "TEXT", Path: "PATH", int: "N", float: "X"}
"""What stands for the value of an option without a ``metavar``; Typer 0.29 would write <list[str]>."""


def option_of(group: str) -> Callable[..., Any]:
    """Return what describes an option as `typer.Option` does, in a group of `--help`."""
    return functools.partial(typer.Option, rich_help_panel=group)


output_option = option_of(OUTPUT)


class GroupedCommand(TyperCommand):
    """A command whose plain help has the sections that Typer's tables have, in the order of its options."""

    def __init__(self, *arguments: Any, **values: Any) -> None:
        super().__init__(*arguments, **values)
        for option in self.params:
            if option.param_type_name == "option" and not getattr(option, "is_flag", False):
                kind = getattr(option, "type_descriptor", None)  # older versions write TEXT themselves
                option.metavar = option.metavar or VALUES.get(getattr(kind, "annotation", None))

    def get_help_option(self, ctx: Any) -> Any:
        """Put `--help` beside the options that say what is printed."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT
        return option

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections; an option of no group stands under "Options"."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                group = getattr(parameter, "rich_help_panel", None) or default
                sections.setdefault(group, []).append(record)
        for group, records in sections.items():
            with formatter.section(group):
                formatter.write_dl(records)


class Program(typer.Typer):
    """A command line whose commands show their options in groups."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **others: Any
    ) -> Any:
        """Add a command."""
        return super().command(name, cls=cls or GroupedCommand, **others)
