"""The commands, each loaded when it is named; commands of vLLM that are not here, and why."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from armcli.groups import Program
from armllm.errors import RequestError


class CommandsWithReasons(TyperGroup):
    """A group that says why commands of vLLM are not here."""

    reasons: ClassVar[dict[str, str]] = {
        "launch": "`armllm serve` has all parts of the server, and `armllm route` the router",
        "download-kernels": "the kernels are part of the package",
        "preload": "the files of a checkpoint are mapped when it is served",
        "snapshot": "an engine is not stored: load the model again",
        "forward": "`armllm bench latency` measures a batch; tools/profile_step.py the parts of a step",
        "mm-processor": "models take text only",
        "startup": "`LLM.stats().load` and the metric armllm:load_seconds have the time of loading",
        "sweep": "`armllm bench suite` runs a file of cases, and `bench serve` several rates",
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; RequestError for one that only vLLM has."""
        if args and args[0] in self.reasons and self.get_command(ctx, args[0]) is None:
            raise RequestError(f"there is no {ctx.command_path} {args[0]}: {self.reasons[args[0]]}")
        return super().resolve_command(ctx, args)


class Commands(CommandsWithReasons):
    """The commands of `armllm`. `armllm.cli.run_batch` has `run-batch`, and so on."""

    names = (
        "run",
        "chat",
        "complete",
        "serve",
        "route",
        "run-batch",
        "bench",
        "info",
        "convert",
        "quantize",
        "pack",
        "doctor",
        "collect-env",
    )

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click asks with it
        """Return the names in the order of the help."""
        return list(self.names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command's module the first time."""
        if cmd_name in self.names and cmd_name not in self.commands:
            part = Program(rich_markup_mode=None, pretty_exceptions_enable=False)
            importlib.import_module(f"armllm.cli.{cmd_name.replace('-', '_')}").register(part)
            self.commands.update(typer.main.get_group(part).commands)
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; all are loaded where a name is wrong, so that the message has one like it."""
        if args and args[0] not in self.names:
            for name in self.names:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)
