"""Options that several commands have, under vLLM's names."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from armllm.checkpoint.scheme import SCHEMES
from armllm.errors import RequestError
from armllm.foregone import FOREGONE, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

Model = Annotated[str, typer.Argument(help="Folder of a Hugging Face checkpoint, or a name on the hub.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the traceback of an error.")]

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def count(text: str | int) -> int:
    """A number that may end in k, m, g (thousands) or K, M, G (1024s), as vLLM writes them."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG]?)", str(text))
    if match is None or ("." in match.group(1) and match.group(2) not in ("k", "m", "g")):
        raise typer.BadParameter(f"{text!r} is not a number such as 4096, 4k or 4K")
    return int(float(match.group(1)) * _SUFFIXES.get(match.group(2), 1))


def _engine(  # noqa: PLR0917 - a list of options
    tokenizer: Annotated[
        str | None, typer.Option(help="Take the tokenizer from here.", rich_help_panel="Engine")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel="Engine")
    ] = "auto",
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            help=f"Round weights while loading: {', '.join(SCHEMES)}.",
            rich_help_panel="Engine",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            help="Text of the kind that the model will see, by which --quantization scales inputs first.",
            rich_help_panel="Engine",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of requests that bring none.", rich_help_panel="Engine")
    ] = 0,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Prompt and output tokens together; 4k and 4K are understood.",
            rich_help_panel="Engine",
            parser=count,
            metavar="N",
        ),
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Sequences per step at most.", rich_help_panel="Engine")
    ] = 256,
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(help="Tokens per step at most.", rich_help_panel="Engine", parser=count, metavar="N"),
    ] = 2048,
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="auto: the KV cache has the type of --dtype; int8: rounded, in half the memory.",
            rich_help_panel="Engine",
        ),
    ] = "auto",
    block_size: Annotated[
        int, typer.Option(help="Tokens per block of the KV cache.", rich_help_panel="Engine")
    ] = 16,
    num_gpu_blocks_override: Annotated[
        int | None,
        typer.Option(
            help="Blocks of the KV cache; else VLLM_CPU_KVCACHE_SPACE (GiB) or free memory decides.",
            rich_help_panel="Engine",
        ),
    ] = None,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Keep what prompts begin with for the next.", rich_help_panel="Engine")
    ] = True,
    scheduling_policy: Annotated[
        str,
        typer.Option(help="fcfs, or priority: lower numbers first.", rich_help_panel="Engine"),
    ] = "fcfs",
    tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "-tp", hidden=True)] = 1,
    pipeline_parallel_size: Annotated[int, typer.Option("--pipeline-parallel-size", "-pp", hidden=True)] = 1,
    data_parallel_size: Annotated[int, typer.Option("--data-parallel-size", "-dp", hidden=True)] = 1,
    distributed_executor_backend: Annotated[str, typer.Option(hidden=True)] = "mp",
    device: Annotated[str, typer.Option(hidden=True)] = "cpu",
    load_format: Annotated[str, typer.Option(hidden=True)] = "auto",
    tokenizer_mode: Annotated[str, typer.Option(hidden=True)] = "auto",
    task: Annotated[str, typer.Option(hidden=True)] = "auto",
    runner: Annotated[str, typer.Option(hidden=True)] = "auto",
    cpu_offload_gb: Annotated[float, typer.Option(hidden=True)] = 0.0,
    swap_space: Annotated[float, typer.Option(hidden=True)] = 0.0,
    gpu_memory_utilization: Annotated[float | None, typer.Option(hidden=True)] = None,
    enable_chunked_prefill: Annotated[bool, typer.Option(hidden=True)] = True,
    enforce_eager: Annotated[bool, typer.Option(hidden=True)] = True,
    trust_remote_code: Annotated[bool, typer.Option(hidden=True)] = False,
    disable_log_stats: Annotated[bool, typer.Option("--disable-log-stats", hidden=True)] = False,
) -> None:
    """Hold the options; `takes_engine_options` hands them to a command. Those of `FOREGONE` are not shown."""


_ENGINE = inspect.signature(_engine, eval_str=True).parameters


def takes_engine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the engine's options; it gets those that were set as the dict ``engine``.

    An option that the command names itself stays its own.
    """
    own = inspect.signature(command, eval_str=True).parameters
    shared = {name: parameter for name, parameter in _ENGINE.items() if name not in own}

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> Any:
        options = {name: arguments.pop(name) for name in shared}
        for name in FOREGONE:
            if name in options and (refused := refusal(name, options.pop(name))) is not None:
                raise RequestError(f"--{name.replace('_', '-')} {refused}")
        changed = {name: value for name, value in options.items() if value != shared[name].default}
        return command(**arguments, engine=changed)

    parameters = [parameter for name, parameter in own.items() if name != "engine"] + list(shared.values())
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del wrapper.__wrapped__  # inspect would look behind the new signature
    return wrapper


def only(option: str, value: Any, accepted: tuple[Any, ...], reason: str) -> None:
    """Refuse an option of vLLM's whose other values can't be honoured."""
    if value not in accepted:
        shown = " or ".join(str(one) for one in accepted)
        raise RequestError(f"{option} must be {shown}, not {value}: {reason}")
