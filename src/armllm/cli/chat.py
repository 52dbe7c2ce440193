"""`armllm chat`: talk to a model in the terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armllm.cli.options import Model, Verbose, takes_engine_options
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from armllm.engine.llm import LLM
    from armllm.sampling_params import SamplingParams


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="chat")(chat)


@takes_engine_options
def chat(  # noqa: PLR0917 - typer reads options from parameters
    model: Model,
    engine: dict[str, Any],
    system_prompt: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    quick: Annotated[
        str | None, typer.Option("--quick", "-q", help="Send one message, print the answer and end.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens per answer; default: all that fit.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default: the checkpoint's.")] = None,
    max_num_seqs: Annotated[int, typer.Option(hidden=True)] = 1,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Talk to a model; an empty line or Ctrl-D ends, Ctrl-C stops an answer."""
    import dataclasses  # noqa: PLC0415

    from armllm.engine.llm import LLM  # noqa: PLC0415 - torch takes seconds, --help should not
    from armllm.sampling_params import RequestOutputKind  # noqa: PLC0415

    llm = LLM(model, max_num_seqs=max_num_seqs, **engine)
    changes: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
    params = dataclasses.replace(
        llm.get_default_sampling_params(),
        max_tokens=max_tokens,
        output_kind=RequestOutputKind.DELTA,
        **changes,
    )
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    for text in [quick] if quick is not None else _lines():
        messages.append({"role": "user", "content": text})
        answer = ""
        try:
            for piece in _answer(llm, messages, params):
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


def _answer(llm: LLM, messages: list[dict[str, str]], params: SamplingParams) -> Iterator[str]:
    """The pieces of an answer as they are generated; closing the iterator drops the request."""
    from armllm.chat import ChatTemplate, find_template  # noqa: PLC0415

    tokenizer = llm.get_tokenizer()
    source = find_template(tokenizer.folder, tokenizer.settings, tools=False)
    prompt = ChatTemplate(source, tokenizer.special_texts()).render(messages)
    engine = llm.llm_engine
    engine.add_request("chat", tokenizer.encode(prompt, add_special_tokens=False), params)
    try:
        while engine.has_unfinished_requests():
            for output in engine.step():
                yield from (completion.text for completion in output.outputs)
    finally:
        engine.abort(["chat"])
