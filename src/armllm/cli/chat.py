"""`armllm chat`: talk to a model in the terminal."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armcli.groups import option_of, output_option
from armllm.checkpoint.scheme import SCHEMES
from armllm.cli.options import (
    EngineCommand,
    Verbose,
    model_option,
    only,
    sampling_option,
    server_option,
    takes_engine_options,
)
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armllm.cli.conversation import LocalModel, RemoteModel


conversation_option = option_of("Conversation")

LOCAL_SERVER = "http://localhost:8000/v1"
COMMANDS = {
    "/help": "list the commands",
    "/reset": "forget the conversation; the system prompt stays",
    "/exit": "end, as an empty line and Ctrl-D do",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="chat", cls=EngineCommand)(chat_command)


@takes_engine_options
def chat_command(  # noqa: PLR0917 - typer reads options from parameters
    engine: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            help="Folder of a checkpoint, a .gguf file, or a name on the hub; default: the model at --url."
        ),
    ] = None,
    url: Annotated[
        str | None,
        server_option(
            help=f"API of a server to use instead of MODEL. Default without MODEL: {LOCAL_SERVER}."
        ),
    ] = None,
    model_name: Annotated[
        str | None, server_option(help="Name of the model at --url; default: the server's first.")
    ] = None,
    api_key: Annotated[
        str | None, server_option(envvar=["ARMLLM_API_KEY", "OPENAI_API_KEY"], help="Key of the server.")
    ] = None,
    system_prompt: Annotated[
        str | None, conversation_option(help="System message of the conversation.")
    ] = None,
    chat_template: Annotated[
        str | None,
        conversation_option(
            help="Chat template, as a file or as text; default: the checkpoint's. Not with --url."
        ),
    ] = None,
    quick: Annotated[
        str | None, conversation_option("--quick", "-q", help="Send one message, print the answer and end.")
    ] = None,
    max_tokens: Annotated[
        int | None, sampling_option(help="Most tokens per answer; default: all that fit.")
    ] = None,
    temperature: Annotated[
        float | None, sampling_option(help="Temperature of sampling; default: the checkpoint's.")
    ] = None,
    stats: Annotated[
        bool, output_option("--stats", help="Print the time to the first token and the speed.")
    ] = False,
    quantization: Annotated[  # without the short form -q, which is --quick's here
        str | None, model_option(help=f"Round the weights while loading: {', '.join(SCHEMES)}.")
    ] = None,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Chat with a model. An empty line or Ctrl-D ends, Ctrl-C stops an answer, /help lists commands."""
    changes: dict[str, Any] = {"max_tokens": max_tokens}
    if temperature is not None:
        changes["temperature"] = temperature
    if quantization is not None:
        engine["quantization"] = quantization
    speaker = _speaker(model, url, model_name, api_key, chat_template, engine=engine, changes=changes)
    system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    if quick is not None:
        from armllm.cli.conversation import show  # noqa: PLC0415 - --help should not wait

        show(speaker.answer([*system, {"role": "user", "content": quick}]), speaker, stats=stats)
    else:
        _talk(speaker, system, stats=stats)


def _speaker(
    model: str | None,
    url: str | None,
    model_name: str | None,
    api_key: str | None,
    chat_template: str | None,
    *,
    engine: dict[str, Any],
    changes: dict[str, Any],
) -> LocalModel | RemoteModel:
    from armllm.cli.conversation import LocalModel, RemoteModel  # noqa: PLC0415 - --help should not wait

    if model is not None and url is None:
        only("--model-name", model_name, (None,), "it goes with --url")
        from armllm.chat import read_template  # noqa: PLC0415

        template = None if chat_template is None else read_template(chat_template, "--chat-template")
        return LocalModel(model, engine, changes, template)
    only("MODEL beside --url", model, (None,), "the server has its own; --model-name chooses")
    only("--chat-template", chat_template, (None,), "with --url the template is the server's")
    for name in engine:
        raise RequestError(f"--{name.replace('_', '-')} cannot go with --url: the engine is the server's")
    return RemoteModel(url or LOCAL_SERVER, model_name, api_key, changes)


def _talk(speaker: LocalModel | RemoteModel, system: list[dict[str, str]], *, stats: bool) -> None:
    """One conversation after the other, until the user ends."""
    if sys.stdin.isatty():
        print("/help lists the commands.", file=sys.stderr)
    messages = list(system)
    for line in typed_lines():
        if line in COMMANDS:
            if line == "/exit":
                return
            if line == "/reset":
                messages = list(system)
                print("The conversation is empty.", file=sys.stderr)
            else:
                print("\n".join(f"{name:8}{text}" for name, text in COMMANDS.items()), file=sys.stderr)
        elif re.fullmatch(r"/\w+", line):
            print(f"armllm: {line} is no command; /help lists them", file=sys.stderr)
        else:
            _answer(speaker, messages, line, stats=stats)


def _answer(
    speaker: LocalModel | RemoteModel, messages: list[dict[str, str]], text: str, *, stats: bool
) -> None:
    """Print the answer to a message; both join ``messages`` unless it failed."""
    from armllm.cli.conversation import show  # noqa: PLC0415 - --help should not wait

    question = {"role": "user", "content": text}
    try:
        answer = show(speaker.answer([*messages, question]), speaker, stats=stats)
    except KeyboardInterrupt as interrupt:
        print(" [stopped]")
        answer = str(interrupt)
    except RequestError as error:  # such as a conversation that has become too long
        print(f"armllm: {error}", file=sys.stderr)
        return
    messages += [question, {"role": "assistant", "content": answer}]


def typed_lines() -> Iterator[str]:
    """What the user types, up to an empty line or the end of the input; Ctrl-C drops a line."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401, PLC0415 - gives input() line editing and a history
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("\n(an empty line or Ctrl-D ends)", file=sys.stderr)
            continue
        if not line.strip():
            return
        yield line.strip() if line.lstrip().startswith("/") else line
