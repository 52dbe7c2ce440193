"""Options that several commands have, under vLLM's names."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.models import ArgumentInfo

from armcli.groups import GroupedCommand, option_of, output_option
from armllm.checkpoint.scheme import SCHEMES
from armllm.errors import RequestError
from armllm.foregone import Foregone, find_flag, read_flag
from armllm.progress import progress
from armllm.utils.options import human_readable_int, opposite, ranks

if TYPE_CHECKING:
    from collections.abc import Callable

model_option = option_of("Model")
parallelism_option = option_of("Parallelism")
cache_option = option_of("Cache")
scheduler_option = option_of("Scheduler")
lora_option = option_of("LoRA")
frontend_option = option_of("Frontend")
sampling_option = option_of("Sampling")
server_option = option_of("Server")
requests_option = option_of("Requests")
load_option = option_of("Load")

Model = Annotated[
    str, typer.Argument(help="Folder of a checkpoint, a .gguf file, or a name on the hub.", metavar="MODEL")
]
AsJson = Annotated[bool, output_option("--json", help="Print one JSON document.")]


def _hide_progress(quiet: bool) -> None:
    if quiet:
        progress.visible = False


Quiet = Annotated[
    bool,
    output_option(
        "--quiet", "-q", help="Print no progress on stderr.", callback=_hide_progress, is_eager=True
    ),
]
Verbose = Annotated[bool, output_option("--verbose", help="Print the traceback of an error.")]


def count(text: str | int) -> int:
    """A number as vLLM writes them: 4096, 4k or 4K."""
    try:
        return human_readable_int(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def number_of_ranks(text: str | int) -> int | str:
    """A number, or "auto"."""
    try:
        return ranks(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor auto") from None


def json_object(text: str | dict[str, Any]) -> dict[str, Any]:
    """An object as JSON."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'{text!r:.80} is not a JSON object such as {{"temperature": 0.5}}')
    return value


@dataclasses.dataclass
class _EngineOptions:
    tokenizer: Annotated[
        str | None, model_option(help="Folder of the tokenizer, or a name on the hub; default: MODEL.")
    ] = None
    revision: Annotated[str | None, model_option(help="Branch, tag or commit on the hub.")] = None
    tokenizer_revision: Annotated[str | None, model_option(help="Branch, tag or commit of --tokenizer.")] = (
        None
    )
    download_dir: Annotated[str | None, model_option(help="Folder of downloads; default: $HF_HOME/hub.")] = (
        None
    )
    load_format: Annotated[str, model_option(help="auto; dummy: random weights, no download.")] = "auto"
    hf_token: Annotated[
        str | None, model_option(help="Token of the hub, for private models; default: HF_TOKEN.")
    ] = None
    dtype: Annotated[
        str, model_option(help="Type of weights and activations: auto, float32, bfloat16 or float16.")
    ] = "auto"
    quantization: Annotated[
        str | None,
        model_option("--quantization", "-q", help=f"Round the weights while loading: {', '.join(SCHEMES)}."),
    ] = None
    calibration: Annotated[
        str | None,
        model_option(
            "--calibrate",
            help="Text file by which --quantization is calibrated.",
        ),
    ] = None
    seed: Annotated[int, model_option(help="Seed for requests without one.")] = 0
    max_model_len: Annotated[
        int | None,
        model_option(
            help="Most tokens of prompt and output, such as 4096, 4k or 4K; auto: what the KV cache holds.",
            parser=count,
            metavar="N",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None, scheduler_option(help="Most sequences per step; default: 256, in a server 128.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        scheduler_option(
            help="Most tokens per step; default: 4096, in a server 2048.", parser=count, metavar="N"
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        cache_option(help="Type of the KV cache: auto (that of --dtype), or int8 in half the memory."),
    ] = "auto"
    block_size: Annotated[
        int | None, cache_option(help="Tokens per block of the KV cache; default: 16, with OpenVINO 32.")
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None,
        cache_option(
            help="Size of the KV cache, such as 4G; default: a share of the free memory.",
            parser=count,
            metavar="N",
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None,
        cache_option(help="Blocks of the KV cache; default: by VLLM_CPU_KVCACHE_SPACE (GiB) or free memory."),
    ] = None
    enable_prefix_caching: Annotated[
        bool, cache_option(help="Reuse the KV cache of prompts with the same beginning.")
    ] = True
    max_logprobs: Annotated[
        int | None,
        model_option(help="Most log-probabilities per token, -1: no limit; default in a server: 20."),
    ] = None
    generation_config: Annotated[
        str, model_option(help="Defaults of sampling: auto (the checkpoint's), or vllm (neutral).")
    ] = "auto"
    override_generation_config: Annotated[
        Any,
        model_option(
            help='Changes of these defaults, such as {"temperature": 0.5}.',
            parser=json_object,
            metavar="JSON",
        ),
    ] = None
    hf_overrides: Annotated[
        Any,
        model_option(
            help='JSON of values above those of config.json: {"rope_theta": 1e6}.',
            parser=json_object,
            metavar="JSON",
        ),
    ] = None
    limit_mm_per_prompt: Annotated[
        Any,
        model_option(
            help='Most pictures in a prompt: {"image": 4}; default: 16.', parser=json_object, metavar="JSON"
        ),
    ] = None
    skip_tokenizer_init: Annotated[
        bool, model_option("--skip-tokenizer-init/--no-skip-tokenizer-init", hidden=True)
    ] = False
    backend: Annotated[str, model_option(help="Back end of the model: armllm or openvino.")] = "armllm"
    tensor_parallel_size: Annotated[
        Any,
        parallelism_option(
            "--tensor-parallel-size",
            "-tp",
            help="Processes that compute the model together; auto: one per NUMA node, where that pays.",
            parser=number_of_ranks,
            metavar="N",
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        parallelism_option(
            "--pipeline-parallel-size", "-pp", help="Processes of which each has some of the layers."
        ),
    ] = 1
    nnodes: Annotated[
        int, parallelism_option("--nnodes", "-n", help="Machines that compute the model, a stage on each.")
    ] = 1
    node_rank: Annotated[
        int, parallelism_option("--node-rank", "-r", help="The number of this machine, from 0.")
    ] = 0
    master_addr: Annotated[str, parallelism_option(help="Where machine 0 waits for the others.")] = (
        "127.0.0.1"
    )
    master_port: Annotated[int, parallelism_option(help="The port for that.")] = 29501
    enable_lora: Annotated[bool, lora_option(help="Accept LoRA adapters.")] = False
    max_loras: Annotated[int, lora_option(help="Most different adapters per step.")] = 1
    max_lora_rank: Annotated[int, lora_option(help="Greatest rank of an adapter.")] = 16
    max_cpu_loras: Annotated[
        int | None, lora_option(help="Most adapters in memory; default: --max-loras.")
    ] = None
    scheduling_policy: Annotated[
        str, scheduler_option(help="Order of requests: fcfs, or priority (lower numbers first).")
    ] = "fcfs"


class EngineCommand(GroupedCommand):
    """A command with the engine's options: it looks at those that only vLLM has before click does."""

    kind: str | None = None  # of the options that only one command has

    def takes(self, option: Foregone) -> bool:
        """Whether vLLM's command has the option too."""
        return option.command in (None, self.kind)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take them out; raises RequestError for a value that is not supported."""
        own = {flag for parameter in self.params for flag in (*parameter.opts, *parameter.secondary_opts)}
        remaining: list[str] = []
        position = 0
        while position < len(args):
            argument = _own_name(args[position], own)
            option = None if argument.partition("=")[0] in own else find_flag(argument)
            if argument == "--" or option is None or not self.takes(option):
                end = len(args) if argument == "--" else position + 1
                remaining += [argument, *args[position + 1 : end]]
                position = end
                continue
            value, taken = read_flag(option, args[position:])
            if (refused := option.refusal(value)) is not None:
                raise RequestError(f"--{option.name.replace('_', '-')} {refused}")
            position += taken
        return super().parse_args(ctx, remaining)


def _own_name(argument: str, own: set[str]) -> str:
    """``--disable-x`` as ``--no-enable-x`` where the command has only that."""
    flag = argument.partition("=")[0]
    other = opposite(flag)
    return other if other is not None and other in own and flag not in own else argument


def takes(
    name: str, options: type[Any], gather: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the fields of a dataclass as options.

    The command gets them as the argument ``name``: an instance, or what ``gather`` makes of the values. An
    option that the command names itself stays its own.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(command, eval_str=True).parameters
        fields = inspect.signature(options, eval_str=True).parameters.values()
        shared = [field for field in fields if field.name not in own]

        @functools.wraps(command)
        def wrapper(**arguments: Any) -> Any:
            values = {field.name: arguments.pop(field.name) for field in shared}
            return command(**arguments, **{name: (gather or options)(**values)})

        plain = [parameter for parameter in own.values() if parameter.name != name]
        arguments = [parameter for parameter in plain if _is_argument(parameter)]
        parameters = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in (*arguments, *shared, *(one for one in plain if one not in arguments))
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del wrapper.__wrapped__  # inspect would look behind the new signature
        return wrapper

    return decorate


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any(isinstance(one, ArgumentInfo) for one in getattr(parameter.annotation, "__metadata__", ()))


def _changed(**values: Any) -> dict[str, Any]:
    """The engine's options that were set."""
    return {name: value for name, value in values.items() if value != getattr(_EngineOptions, name)}


takes_engine_options = takes("engine", _EngineOptions, _changed)
"""A decorator: the command gets the engine's options that were set as the dict ``engine``."""


def only(option: str, value: Any, accepted: tuple[Any, ...], reason: str) -> None:
    """Refuse an option of vLLM's whose other values are not supported."""
    if value not in accepted:
        shown = " or ".join(str(one) for one in accepted)
        raise RequestError(f"{option} must be {shown}, not {value}: {reason}")


def styled(text: str, status: str) -> str:
    """``text`` in the color of a verdict (ok, warn, error), on a terminal whose user wants colors."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, fg={"ok": "green", "warn": "yellow", "error": "red"}[status])
