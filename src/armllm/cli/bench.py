"""`armllm bench`: latency and throughput of the engine, and of servers under load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from armcli.groups import Program, output_option
from armllm.cli import bench_runs
from armllm.cli.bench_data import BATCH_OUTPUT_LEN, DataSet, InputLen, OutputLen, tell, write
from armllm.cli.bench_serve import serve_command
from armllm.cli.commands import CommandsWithReasons
from armllm.cli.options import (
    AsJson,
    EngineCommand,
    Verbose,
    load_option,
    model_option,
    only,
    requests_option,
    takes,
    takes_engine_options,
)

if TYPE_CHECKING:
    import typer

    from armllm.foregone import Foregone

ModelOption = Annotated[
    str, model_option("--model", help="Folder of a checkpoint, a .gguf file, or a name on the hub.")
]
OutputJson = Annotated[str | None, output_option(help="JSON file to write the figures to.")]


class BenchCommand(EngineCommand):
    """With the flags of ``vllm bench``."""

    kind = "bench"


class ClientCommand(BenchCommand):
    """Without the engine's."""

    def takes(self, option: Foregone) -> bool:
        """Whether vLLM's command has the option too."""
        return option.command == self.kind or option.name in {"served_model_name", "tokenizer_mode"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = Program(
        cls=CommandsWithReasons,
        help="Measure the engine, or a server under load.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    for command in (latency, throughput):
        bench.command(cls=BenchCommand)(command)
    bench.command(name="serve", cls=ClientCommand)(serve_command)
    bench_runs.register(bench)
    app.add_typer(bench, name="bench")


@takes_engine_options
def latency(  # noqa: PLR0917 - typer reads options from parameters
    model: ModelOption,
    engine: dict[str, Any],
    input_len: InputLen = 32,
    output_len: OutputLen = None,
    batch_size: Annotated[int, requests_option(help="Prompts in the batch.")] = 8,
    num_iters_warmup: Annotated[int, load_option(help="Warm-up runs, not measured.")] = 10,
    num_iters: Annotated[int, load_option(help="Measured runs.")] = 30,
    output_json: OutputJson = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Measure how long one batch takes."""
    from armllm.api.llm import LLM  # noqa: PLC0415
    from armllm.bench.dataset import random_requests  # noqa: PLC0415 - --help should not wait for torch
    from armllm.bench.offline import measure_latency  # noqa: PLC0415

    llm = LLM(model, **{"enable_prefix_caching": False, **engine})
    requests = random_requests(
        batch_size,
        input_len=input_len,
        output_len=output_len or BATCH_OUTPUT_LEN,
        range_ratio=0.0,
        vocab_size=llm.llm_engine.processor.vocab_size,
        seed=0,
    )
    result = measure_latency(llm, requests, warmups=num_iters_warmup, repeats=num_iters, progress=tell)
    write(output_json, result)
    if as_json:
        print(json.dumps({"schema": 1, **result}))
        return
    print(f"Avg latency: {result['avg_latency']:.4f} seconds")
    for rank, seconds in result["percentiles"].items():
        print(f"{rank}% percentile latency: {seconds:.4f} seconds")


@takes_engine_options
@takes("data_set", DataSet)
def throughput(  # noqa: PLR0917 - typer reads options from parameters
    model: ModelOption,
    engine: dict[str, Any],
    data_set: DataSet,
    backend: Annotated[str, model_option(hidden=True)] = "vllm",
    output_json: OutputJson = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Measure tokens per second when all requests are there at once."""
    only("--backend", backend, ("vllm",), "this engine is measured")
    from armllm.api.llm import LLM  # noqa: PLC0415
    from armllm.bench.offline import measure_throughput  # noqa: PLC0415 - --help should not wait for torch

    llm = LLM(model, **engine)
    requests = data_set.requests(
        llm.get_tokenizer(),
        vocab_size=llm.llm_engine.processor.vocab_size,
        max_model_len=llm.llm_engine.runner.max_model_len,
        seed=engine.get("seed", 0),
    )
    result = measure_throughput(llm, requests)
    write(output_json, result)
    if as_json:
        print(json.dumps({"schema": 1, **result}))
        return
    print(
        f"Throughput: {result['requests_per_second']:.2f} requests/s,"
        f" {result['tokens_per_second']:.2f} total tokens/s,"
        f" {result['output_tokens_per_second']:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {result['total_input_tokens']}")
    print(f"Total num output tokens:  {result['total_output_tokens']}")
