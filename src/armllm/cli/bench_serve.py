"""`armllm bench serve`: a server under load."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from armcli.groups import output_option
from armllm.cli.bench_data import DataSet, tell, write
from armllm.cli.options import AsJson, Verbose, load_option, only, requests_option, server_option, takes
from armllm.errors import RequestError

if TYPE_CHECKING:
    from armllm.bench.client import Target
    from armllm.tokenizer import Tokenizer

ENDPOINTS = {"openai": "/v1/completions", "vllm": "/v1/completions", "openai-chat": "/v1/chat/completions"}
SLOWEST = 1e-9  # requests per second


@dataclasses.dataclass
class _Server:
    """The options that say which server is asked, and for which model."""

    base_url: Annotated[
        str | None, server_option(help="Address of the server, such as http://host:8000.")
    ] = None
    host: Annotated[str, server_option(help="Host of the server, without --base-url.")] = "127.0.0.1"
    port: Annotated[int, server_option(help="Port of the server, without --base-url.")] = 8000
    backend: Annotated[str, server_option(help="API of the server: openai, vllm or openai-chat.")] = "openai"
    endpoint: Annotated[
        str | None, server_option(help="Path of the requests; default: that of the backend.")
    ] = None
    model: Annotated[str | None, server_option(help="Name of the model; default: the server's first.")] = None
    tokenizer: Annotated[
        str | None,
        server_option(help="Folder of a tokenizer, or a name on the hub; default: the server's."),
    ] = None
    api_key: Annotated[
        str | None, server_option(envvar=["ARMLLM_API_KEY", "OPENAI_API_KEY"], help="Key of the server.")
    ] = None
    ready_check_timeout_sec: Annotated[
        float, server_option(help="Seconds to wait until the server is ready.", min=0)
    ] = 0.0
    ignore_eos: Annotated[
        bool, requests_option(help="Request answers of full length, without an end token.")
    ] = True

    def __post_init__(self) -> None:
        only("--backend", self.backend, tuple(ENDPOINTS), "other protocols are not spoken")

    def find(self, data_set: DataSet, seed: int) -> tuple[Target, list[dict[str, Any]], list[int]]:
        """The server, and the bodies of its requests with the lengths of their prompts."""
        from armllm.bench import client  # noqa: PLC0415 - --help should not wait for it

        url = self.base_url or f"http://{self.host}:{self.port}"
        found = client.find_model(url, self.api_key, patience=self.ready_check_timeout_sec)
        tokenizer = _tokenizer(self.tokenizer or self.model or found.get("root") or found["id"])
        requests = data_set.requests(
            tokenizer,
            vocab_size=tokenizer.vocab_size,
            max_model_len=found.get("max_model_len") or sys.maxsize,
            seed=seed,
        )
        target = client.Target(
            url,
            self.endpoint or ENDPOINTS[self.backend],
            model=self.model or found["id"],
            api_key=self.api_key,
            ignore_eos=self.ignore_eos,
        )
        chat = target.url.endswith("/chat/completions")
        bodies = [
            target.body(request, tokenizer.decode(request.prompt_token_ids) if chat else None)
            for request in requests
        ]
        return target, bodies, [len(request.prompt_token_ids) for request in requests]


@dataclasses.dataclass
class _Load:
    """The options that say when requests are sent."""

    request_rate: Annotated[
        str, load_option(help="Requests per second, or several rates with commas; inf sends all at once.")
    ] = "inf"
    burstiness: Annotated[float, load_option(help="1: Poisson arrivals; below 1: bursts.")] = 1.0
    max_concurrency: Annotated[int | None, load_option(help="Most requests at a time.", min=1)] = None
    num_warmups: Annotated[int, load_option(help="Warm-up requests, not measured.", min=0)] = 1
    seed: Annotated[int, load_option(help="Seed of prompts and arrivals.")] = 0

    def __post_init__(self) -> None:
        self.rates = _numbers(
            "--request-rate", self.request_rate, "numbers above 0, or inf", SLOWEST, float("inf")
        )


@dataclasses.dataclass
class _Figures:
    """The options that say what is shown and written."""

    plot: Annotated[
        str | None,
        output_option(help="Write plots over the rates: TEXT-ttft and TEXT-tpot, as .png and .svg."),
    ] = None
    percentile_metrics: Annotated[
        str, output_option(help="Figures to print, with commas: ttft, tpot, itl, e2el.")
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[
        str, output_option(help="Percentiles to print beside mean and median, with commas.")
    ] = "99"
    save_result: Annotated[bool, output_option("--save-result", help="Write the figures to a JSON file.")] = (
        False
    )
    result_dir: Annotated[str, output_option(help="Folder of that file.")] = "."
    result_filename: Annotated[
        str | None,
        output_option(help="Name of that file (implies --save-result); default: from model and time."),
    ] = None

    def __post_init__(self) -> None:
        self.metrics = _metrics(self.percentile_metrics, plotted=self.plot is not None)
        self.percentiles = _numbers(
            "--metric-percentiles", self.metric_percentiles, "numbers from 0 to 100", 0, 100
        )

    def file(self, model: str) -> str | None:
        """Where the figures go, if anywhere."""
        if self.result_filename is None and not self.save_result:
            return None
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return str(Path(self.result_dir) / (self.result_filename or f"{Path(model).name}-{stamp}.json"))


@takes("figures", _Figures)
@takes("load", _Load)
@takes("data_set", DataSet)
@takes("server", _Server)
def serve_command(  # noqa: PLR0917 - typer reads options from parameters
    server: _Server,
    data_set: DataSet,
    load: _Load,
    figures: _Figures,
    trust_remote_code: Annotated[bool, server_option(hidden=True)] = False,  # noqa: ARG001 - there is none to run
    skip_tokenizer_init: Annotated[bool, server_option(hidden=True)] = False,
    as_json: AsJson = False,
    verbose: Verbose = False,  # noqa: ARG001 - main() looks for it
) -> int:
    """Measure a server with OpenAI's API. The status is 1 if a request failed."""
    only("--skip-tokenizer-init", skip_tokenizer_init, (False,), "prompts are made with the tokenizer")
    import asyncio  # noqa: PLC0415

    from armllm.bench import client, summary  # noqa: PLC0415 - --help should not wait for it

    if figures.plot is not None:
        from armllm.bench.plot import draw_plot as draw  # noqa: PLC0415 - say now if matplotlib is missing
    target, bodies, lengths = server.find(data_set, load.seed)

    def measure(rate: float, count: int | None = None) -> dict[str, Any]:
        run = client.run(
            target,
            bodies[:count],
            lengths[:count],
            rate=rate,
            burstiness=load.burstiness,
            max_concurrency=load.max_concurrency,
            seed=load.seed,
            progress=lambda done: tell(f"{done}/{count or len(bodies)}", same_line=True),
        )
        outcomes, seconds = asyncio.run(run)
        _report_errors([outcome.error for outcome in outcomes])
        return summary.summarize(
            outcomes,
            seconds,
            rate,
            metrics=figures.metrics,
            percentiles=figures.percentiles,
            max_concurrency=load.max_concurrency,
        )

    if load.num_warmups:
        measure(float("inf"), load.num_warmups)
    results = []
    for rate in load.rates:
        results.append(measure(rate))
        if not as_json:
            print(summary.as_text(results[-1]), flush=True)
    document = {"schema": 1, "model": target.model, "backend": server.backend, "results": results}
    write(figures.file(target.model), document)
    if figures.plot is not None:
        title = f"{target.model}, {data_set.num_prompts} requests per rate"
        for path in draw(results, Path(figures.plot), title):
            tell(f"wrote {path}")
    if as_json:
        print(json.dumps(document))
    return int(any(result["failed"] for result in results))


def _report_errors(found: list[str | None]) -> None:
    errors = [error for error in found if error is not None]
    if len(errors) == len(found):
        raise RequestError(f"no request was answered: {errors[0]}")
    if errors:
        tell(f"{len(errors)} requests failed, the first with: {errors[0]}")


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


def _numbers(option: str, text: str, what: str, least: float, most: float) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = [float("nan")]
    if not all(least <= number <= most for number in numbers):
        raise RequestError(f"{option} must be {what}, divided by commas, not {text!r}")
    return numbers
