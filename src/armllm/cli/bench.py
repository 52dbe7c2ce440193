"""`armllm bench`: latency and throughput of the engine, and of servers under load."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armllm.cli import bench_runs
from armllm.cli.options import AsJson, EngineCommand, Verbose, only, takes, takes_engine_options
from armllm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.bench.dataset import BenchRequest
    from armllm.tokenizer import Tokenizer

ModelOption = Annotated[str, typer.Option("--model", help="Folder of a checkpoint, or a name on the hub.")]
OutputJson = Annotated[str | None, typer.Option(help="Write the figures to this file too.")]
InputLen = Annotated[int, typer.Option("--input-len", "--random-input-len", help="Tokens per random prompt.")]
OutputLen = Annotated[
    int | None,
    typer.Option(
        "--output-len",
        "--random-output-len",
        "--sharegpt-output-len",
        help="Tokens per answer; 128, or for sharegpt those of the file's answer.",
    ),
]
BATCH_OUTPUT_LEN = 128
ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
SLOWEST = 1e-9  # requests per second


@dataclasses.dataclass
class _DataSet:
    """The options of a command that say what its requests are."""

    dataset_name: Annotated[str, typer.Option(help="random, or sharegpt with --dataset-path.")] = "random"
    dataset_path: Annotated[str | None, typer.Option(help="A ShareGPT JSON file.")] = None
    input_len: InputLen = 1024
    output_len: OutputLen = None
    random_range_ratio: Annotated[
        float, typer.Option(help="Spread of the lengths: 0.2 is 20 % up and down.")
    ] = 0.0
    num_prompts: Annotated[int, typer.Option(help="Requests in all; of a server per rate.")] = 1000

    def requests(
        self, tokenizer: Tokenizer, *, vocab_size: int, max_model_len: int, seed: int
    ) -> Sequence[BenchRequest]:
        from armllm.bench import dataset  # noqa: PLC0415 - --help should not wait for it

        if self.dataset_name == "sharegpt":
            if self.dataset_path is None:
                raise RequestError("--dataset-name sharegpt needs --dataset-path")
            return dataset.sharegpt_requests(
                self.dataset_path,
                self.num_prompts,
                tokenizer=tokenizer,
                output_len=self.output_len,
                max_model_len=max_model_len,
                seed=seed,
            )
        only("--dataset-name", self.dataset_name, ("random", "sharegpt"), "other data sets are not known")
        only("--dataset-path", self.dataset_path, (None,), "random prompts come from no file")
        return dataset.random_requests(
            self.num_prompts,
            input_len=self.input_len,
            output_len=self.output_len or BATCH_OUTPUT_LEN,
            range_ratio=self.random_range_ratio,
            vocab_size=vocab_size,
            seed=seed,
        )


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(
        help="Measure the engine, or a server under load.", no_args_is_help=True, rich_markup_mode=None
    )
    for command in (latency, throughput):
        bench.command(cls=EngineCommand)(command)
    bench.command()(serve)
    bench_runs.register(bench)
    app.add_typer(bench, name="bench")


@takes_engine_options
def latency(  # noqa: PLR0917 - typer reads options from parameters
    model: ModelOption,
    engine: dict[str, Any],
    input_len: InputLen = 32,
    output_len: OutputLen = None,
    batch_size: Annotated[int, typer.Option(help="Prompts that run together.")] = 8,
    num_iters_warmup: Annotated[int, typer.Option(help="Runs that don't count.")] = 10,
    num_iters: Annotated[int, typer.Option(help="Runs that count.")] = 30,
    output_json: OutputJson = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Measure how long one batch takes from the first to the last token."""
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
    result = measure_latency(llm, requests, warmups=num_iters_warmup, repeats=num_iters, progress=_tell)
    _write(output_json, result)
    if as_json:
        print(json.dumps({"schema": 1, **result}))
        return
    print(f"Avg latency: {result['avg_latency']:.4f} seconds")
    for rank, seconds in result["percentiles"].items():
        print(f"{rank}% percentile latency: {seconds:.4f} seconds")


@takes_engine_options
@takes("data_set", _DataSet)
def throughput(  # noqa: PLR0917 - typer reads options from parameters
    model: ModelOption,
    engine: dict[str, Any],
    data_set: _DataSet,
    backend: Annotated[str, typer.Option(hidden=True)] = "vllm",
    output_json: OutputJson = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> None:
    """Measure how many tokens the engine does when all requests are there at once."""
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
    _write(output_json, result)
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


@takes("data_set", _DataSet)
def serve(  # noqa: PLR0917 - typer reads options from parameters
    data_set: _DataSet,
    base_url: Annotated[
        str | None, typer.Option(help="Where the server is, such as http://host:8000.")
    ] = None,
    host: Annotated[str, typer.Option(help="Its host, without --base-url.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port, without --base-url.")] = 8000,
    backend: Annotated[str, typer.Option(help="openai, vllm or openai-chat.")] = "openai",
    endpoint: Annotated[str | None, typer.Option(help="Path to ask; the backend's own by default.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name; default: the server's first.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder with a tokenizer, or a name on the hub; default: the server's.")
    ] = None,
    trust_remote_code: Annotated[bool, typer.Option(hidden=True)] = False,  # noqa: ARG001 - there is none to run
    request_rate: Annotated[
        str, typer.Option(help="Requests per second, several divided by commas; inf is all at once.")
    ] = "inf",
    burstiness: Annotated[float, typer.Option(help="1 is a Poisson process, less comes in bursts.")] = 1.0,
    max_concurrency: Annotated[int | None, typer.Option(help="Requests at a time at most.", min=1)] = None,
    num_warmups: Annotated[int, typer.Option(help="Requests before, which don't count.", min=0)] = 1,
    ready_check_timeout_sec: Annotated[
        float, typer.Option(help="Wait so long for the server to be there.", min=0)
    ] = 0.0,
    ignore_eos: Annotated[bool, typer.Option(help="Ask for answers of full length.")] = True,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 0,
    api_key: Annotated[str | None, typer.Option(envvar=["ARMLLM_API_KEY", "OPENAI_API_KEY"])] = None,
    plot: Annotated[
        str | None,
        typer.Option(help="Write PLOT-ttft and PLOT-tpot as .png and .svg: a curve over the rates."),
    ] = None,
    percentile_metrics: Annotated[
        str, typer.Option(help="Figures to print: some of ttft, tpot, itl, e2el, divided by commas.")
    ] = "ttft,tpot,itl,e2el",
    metric_percentiles: Annotated[
        str, typer.Option(help="Which percentiles of them, beside mean and median, divided by commas.")
    ] = "99",
    save_result: Annotated[bool, typer.Option("--save-result", help="Write the figures to a file.")] = False,
    result_dir: Annotated[str, typer.Option(help="Its folder.")] = ".",
    result_filename: Annotated[
        str | None, typer.Option(help="Its name, which implies --save-result; default: from model and time.")
    ] = None,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Measure a server with OpenAI's API at one request rate or several; status 1 if a request failed."""
    import asyncio  # noqa: PLC0415

    from armllm.bench import client, summary  # noqa: PLC0415 - --help should not wait for it

    only("--backend", backend, tuple(ENDPOINTS), "other protocols are not spoken")
    rates = _numbers("--request-rate", request_rate, "numbers above 0, or inf", SLOWEST, float("inf"))
    metrics = _metrics(percentile_metrics, plotted=plot is not None)
    percentiles = _numbers("--metric-percentiles", metric_percentiles, "numbers from 0 to 100", 0, 100)
    if plot is not None:
        from armllm.bench.plot import draw_plot as draw  # noqa: PLC0415 - say now if matplotlib is missing

    url = base_url or f"http://{host}:{port}"
    found = client.find_model(url, api_key, patience=ready_check_timeout_sec)
    client_tokenizer = _tokenizer(tokenizer or model or found.get("root") or found["id"])
    requests = data_set.requests(
        client_tokenizer,
        vocab_size=client_tokenizer.vocab_size,
        max_model_len=found.get("max_model_len") or sys.maxsize,
        seed=seed,
    )
    target = client.Target(
        url,
        endpoint or ENDPOINTS[backend],
        model=model or found["id"],
        api_key=api_key,
        ignore_eos=ignore_eos,
    )
    chat = target.url.endswith("/chat/completions")
    bodies = [
        target.body(request, client_tokenizer.decode(request.prompt_token_ids) if chat else None)
        for request in requests
    ]
    lengths = [len(request.prompt_token_ids) for request in requests]

    def measure(rate: float, count: int | None = None) -> dict[str, Any]:
        run = client.run(
            target,
            bodies[:count],
            lengths[:count],
            rate=rate,
            burstiness=burstiness,
            max_concurrency=max_concurrency,
            seed=seed,
            progress=lambda done: _tell(f"{done}/{count or len(bodies)}", same_line=True),
        )
        outcomes, seconds = asyncio.run(run)
        _report_errors([outcome.error for outcome in outcomes])
        return summary.summarize(
            outcomes,
            seconds,
            rate,
            metrics=metrics,
            percentiles=percentiles,
            max_concurrency=max_concurrency,
        )

    if num_warmups:
        measure(float("inf"), num_warmups)
    results = []
    for rate in rates:
        results.append(measure(rate))
        if not as_json:
            print(summary.as_text(results[-1]), flush=True)
    document = {"schema": 1, "model": target.model, "backend": backend, "results": results}
    _write(_result_file(save_result, result_dir, result_filename, target.model), document)
    if plot is not None:
        for path in draw(results, Path(plot), f"{target.model}, {data_set.num_prompts} requests per rate"):
            _tell(f"wrote {path}")
    if as_json:
        print(json.dumps(document))
    return int(any(result["failed"] for result in results))


def _report_errors(found: list[str | None]) -> None:
    errors = [error for error in found if error is not None]
    if len(errors) == len(found):
        raise RequestError(f"no request was answered: {errors[0]}")
    if errors:
        _tell(f"{len(errors)} requests failed, the first with: {errors[0]}")


def _tokenizer(source: str) -> Tokenizer:
    from armllm.checkpoint.hub import TOKENIZER_FILES, HubOptions, resolve_model  # noqa: PLC0415 - as below
    from armllm.tokenizer import Tokenizer  # noqa: PLC0415 - --help should not wait for it

    return Tokenizer(resolve_model(source, "--tokenizer", HubOptions(patterns=TOKENIZER_FILES)))


def _metrics(text: str, *, plotted: bool) -> list[str]:
    from armllm.bench.summary import METRICS  # noqa: PLC0415 - --help should not wait for it

    metrics = text.split(",")
    for metric in metrics:
        only("--percentile-metrics", metric, METRICS, "there are no other figures")
    if plotted and not {"ttft", "tpot"} <= set(metrics):
        raise RequestError("--plot shows ttft and tpot: --percentile-metrics must name them")
    return metrics


def _result_file(save: bool, folder: str, name: str | None, model: str) -> str | None:
    if name is None and not save:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return str(Path(folder) / (name or f"{Path(model).name}-{stamp}.json"))


def _numbers(option: str, text: str, what: str, least: float, most: float) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [float("nan")]
    if not all(least <= number <= most for number in numbers):
        raise RequestError(f"{option} must be {what}, divided by commas, not {text!r}")
    return numbers


def _write(path: str | None, document: dict[str, Any]) -> None:
    if path is not None:
        try:
            Path(path).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror or error}") from None


def _tell(line: str, *, same_line: bool = False) -> None:
    """Progress, to stderr: on a terminal a line that is written over."""
    if not same_line:
        print(line, file=sys.stderr, flush=True)
    elif sys.stderr.isatty():
        print(f"\r{line} ", end="", file=sys.stderr, flush=True)
