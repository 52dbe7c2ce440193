"""`armllm complete`: complete texts by a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from armllm.cli.chat import typed_lines
from armllm.cli.options import Verbose  # noqa: TC001 - typer evaluates annotations


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="complete")(complete_command)


def complete_command(  # noqa: PLR0917 - typer reads options from parameters
    url: Annotated[str, typer.Option(help="API of the server.")] = "http://localhost:8000/v1",
    model_name: Annotated[
        str | None, typer.Option(help="Name of the model; default: the server's first.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=["ARMLLM_API_KEY", "OPENAI_API_KEY"], help="Key of the server."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens per completion; default: 16.")] = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Complete this prompt and end.", metavar="PROMPT")
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print the time to the first token and the speed.")
    ] = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Complete what you type. An empty line or Ctrl-D ends."""
    from armllm.cli.conversation import RemoteModel, show  # noqa: PLC0415 - --help should not wait

    model = RemoteModel(url, model_name, api_key, {"max_tokens": max_tokens})
    for prompt in [quick] if quick is not None else typed_lines():
        show(model.complete(prompt), model, stats=stats)
