"""`armllm run-batch`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from armcli.groups import option_of, output_option
from armllm.cli.answers import Answers
from armllm.cli.options import Verbose, model_option, takes, takes_engine_options
from armllm.cli.serve import ServeCommand

if TYPE_CHECKING:
    import typer

batch_option = option_of("Batch")
metrics_option = option_of("Metrics")


class BatchCommand(ServeCommand):
    """With the flags of vLLM's server that ask for nothing here, and its lists."""

    has_argument = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="run-batch", cls=BatchCommand)(run_batch_command)


@takes_engine_options
@takes("answers", Answers)
def run_batch_command(  # noqa: PLR0917 - typer reads options from parameters
    engine: dict[str, Any],
    answers: Answers,
    input_file: Annotated[
        str, batch_option("--input-file", "-i", help="A JSON Lines file, or an http URL of one.")
    ],
    output_file: Annotated[
        str, output_option("--output-file", "-o", help="File of the answers, or an http URL for PUT.")
    ],
    model: Annotated[str, model_option(help="Folder of a checkpoint, a .gguf file, or a name on the hub.")],
    output_tmp_dir: Annotated[
        str | None, output_option(help="Folder of the answers until they are uploaded.")
    ] = None,
    enable_metrics: Annotated[
        bool, metrics_option("--enable-metrics", help="Serve metrics for Prometheus.")
    ] = False,
    host: Annotated[str, metrics_option("--host", "--url", help="Address of the metrics.")] = "127.0.0.1",
    port: Annotated[int, metrics_option(help="Port of the metrics.", min=0, max=65535)] = 8000,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Answer a file of requests. The format is OpenAI's batch format; the status is 1 if one failed."""
    from armllm.server.batch import run_batch  # noqa: PLC0415 - --help needs none of it

    answered, failed = run_batch(
        model,
        engine,
        answers.options(model, engine),
        source=input_file,
        target=output_file,
        folder=output_tmp_dir,
        metrics=(host, port) if enable_metrics else None,
    )
    print(f"{answered} requests answered, {failed} failed: {output_file}", file=sys.stderr)
    return int(failed > 0)
