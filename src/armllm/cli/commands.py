"""Commands of vLLM that are not here, and why."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup

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
        if args and args[0] in self.reasons and args[0] not in self.commands:
            raise RequestError(f"there is no {ctx.command_path} {args[0]}: {self.reasons[args[0]]}")
        return super().resolve_command(ctx, args)
