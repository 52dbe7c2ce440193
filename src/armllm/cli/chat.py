"""`armllm chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armllm.cli.options import Verbose, only, takes_engine_options
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armllm.cli.conversation import LocalModel, RemoteModel


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="chat")(chat_command)


@takes_engine_options
def chat_command(  # noqa: PLR0917 - typer reads options from parameters
    engine: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(help="Folder of a checkpoint, a .gguf file, or a name on the hub; not with --url."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Talk to a server instead, such as http://localhost:8000/v1.")
    ] = None,
    model_name: Annotated[
        str | None, typer.Option(help="The model's name at --url; default: the server's first.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=["ARMLLM_API_KEY", "OPENAI_API_KEY"], help="What --url asks for.")
    ] = None,
    system_prompt: Annotated[str | None, typer.Option(help="The system message of the conversation.")] = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send one message, print the answer and end.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens per answer; default: all that fit.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the checkpoint's.")] = None,
    quantization: Annotated[  # without the short form -q, which is --quick's here
        str | None, typer.Option(help="Round weights while loading.", rich_help_panel="Engine")
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Talk to a model; an empty line or Ctrl-D ends, Ctrl-C stops an answer."""
    changes: dict[str, Any] = {"max_tokens": max_tokens}
    if temperature is not None:
        changes["temperature"] = temperature
    if quantization is not None:
        engine["quantization"] = quantization
    speaker = _speaker(model, url, model_name, api_key, engine=engine, changes=changes)
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    for text in [quick] if quick is not None else _lines():
        messages.append({"role": "user", "content": text})
        answer = ""
        try:
            with contextlib.closing(speaker.answer(messages)) as pieces:
                for piece in pieces:
                    print(piece, end="", flush=True)
                    answer += piece
            print()
        except KeyboardInterrupt:
            print(" [stopped]")
            if quick is not None:
                raise
        except RequestError as error:  # such as a conversation that has become too long
            if quick is not None:
                raise
            print(f"armllm: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})


def _speaker(
    model: str | None,
    url: str | None,
    model_name: str | None,
    api_key: str | None,
    *,
    engine: dict[str, Any],
    changes: dict[str, Any],
) -> LocalModel | RemoteModel:
    from armllm.cli.conversation import LocalModel, RemoteModel  # noqa: PLC0415 - --help should not wait

    if url is None:
        only("--model-name", model_name, (None,), "it goes with --url")
        if model is None:
            raise RequestError("say which MODEL to talk to, or --url of a server")
        return LocalModel(model, engine, changes)
    only("MODEL beside --url", model, (None,), "the server has its own; --model-name chooses")
    for name in engine:
        raise RequestError(f"--{name.replace('_', '-')} cannot go with --url: the engine is the server's")
    return RemoteModel(url, model_name, api_key, changes)


def _lines() -> Iterator[str]:
    """What the user types, up to an empty line or the end of the input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401, PLC0415 - gives input() a history
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        if not line.strip():
            return
        yield line
