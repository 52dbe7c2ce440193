"""Compare the ops, run the cases that the command line asks for, and report."""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

import armllm
from armllm import kernels
from armllm.smoke.arguments import refuse
from armllm.smoke.cases import alone, batches, default_cases
from armllm.smoke.ops import compare_ops
from armllm.smoke.passages import MIXTURE, MODEL, Passage, load_passages
from armllm.smoke.recite import Run, run

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from armllm.smoke.cases import Case
    from armllm.smoke.ops import OpResult

OPTIONS = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "kv_cache_dtype",
    "block_size",
    "num_gpu_blocks_override",
)
QUANTIZED = ("int8", "int4-g32", "int4-g128", "int4-channelwise")
"""What the shortest text runs with as well: each of the quantized products once."""
EXPERTS = (None, "int8", "int4-g32")
"""The schemes that the model with experts runs with."""

Planned = tuple["Path", str, "str | None", "Case"]  # model, dtype, quantization, case


class UsageError(Exception):
    """An option names something that is not there."""


def recite(arguments: argparse.Namespace) -> int:
    """Compare every op, run every case in every dtype, print the report, return the exit status."""
    try:
        planned = plan(arguments)
    except UsageError as error:
        refuse(str(error), as_json=arguments.json)
        return 2
    if arguments.emulated:
        spare_the_emulator()
    ops = compare_ops()
    show_ops(ops, sys.stderr if arguments.json else sys.stdout)
    report = describe(list(run_all(planned, arguments)), ops)
    if arguments.json:
        print(json.dumps(report))
    else:
        print(summary(report))
    return 0 if report["ok"] else 1


def spare_the_emulator() -> None:
    """Keep torch's matrix products from running at a tenth of QEMU's normal speed.

    oneDNN's SVE code is left out, and products of 16-bit numbers are computed from fp32 copies. And QEMU
    computes SVE in the 256-bit registers of an x86-64 host and leaves their upper halves in use, which makes
    each scalar SSE instruction after it slow (Intel's optimization manual, "Mixing Intel AVX code with SSE
    code"): QEMU's fused multiply-adds, so torch's products too. Zeros written by the C library (DC ZVA) are a
    memset of the host's, which ends with VZEROUPPER. That clears this thread's registers: so the products are
    kept on this thread.
    """
    torch.backends.mkldnn.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    zeros = ctypes.create_string_buffer(1024)
    product = torch.nn.functional.linear
    copies = WeakTensorKeyDictionary()

    def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - torch's name
        if weight.dtype == torch.float32:
            wide = weight
        else:
            if weight not in copies:
                copies[weight] = weight.float()
            wide = copies[weight]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        ctypes.memset(zeros, 0, len(zeros))
        result = product(input.float(), wide, None if bias is None else bias.float())
        torch.set_num_threads(threads)
        return result.to(input.dtype)

    torch.nn.functional.linear = linear


def plan(arguments: argparse.Namespace) -> list[Planned]:
    """Return the runs; UsageError for a text or folder that is not there."""
    passages = read_passages(arguments.model)
    known = {passage.name: passage for passage in passages}
    names = arguments.prompts.split(",") if arguments.prompts else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"--prompts: no text is called {unknown[0]!r}; there are {', '.join(known)}")
    asked = [known[name] for name in names]
    options = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    cases = batches(asked, arguments.batch, options) if arguments.batch else default_cases(asked, options)
    models = [arguments.model]
    planned = list(itertools.product(models, arguments.dtype, arguments.quantization or (None,), cases))
    if arguments.emulated:  # the thread that `spare_the_emulator` cannot clear would compute fp32's attention
        planned = [(m, d, q, replace(c, threads=1) if d == "float32" else c) for m, d, q, c in planned]
    if not arguments.quantization and not arguments.batch:
        shortest = min(asked, key=lambda passage: len(passage.token_ids))
        model, dtype = arguments.model, arguments.dtype[-1]
        planned += [(model, dtype, scheme, alone(shortest, options)) for scheme in QUANTIZED]
        if arguments.kv_cache_dtype is None:
            planned.append((model, dtype, None, alone(shortest, {**options, "kv_cache_dtype": "int8"})))
        if model == MODEL and not arguments.prompts:
            case = alone(load_passages(MIXTURE)[0], options)
            planned += [(MIXTURE, dtype, scheme, case) for scheme in EXPERTS]
    return planned


def read_passages(folder: Path) -> Sequence[Passage]:
    try:
        return load_passages(folder)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--model: {folder} is not a smoke model, which has passages.json and expected.json"
            f" ({type(error).__name__}: {error})"
        ) from None


def run_all(planned: Sequence[Planned], arguments: argparse.Namespace) -> Iterator[Run]:
    """Run the cases, showing each verdict as it comes."""
    for model, dtype, quantization, case in planned:
        result = run(case, dtype, model, quantization)
        show(result, sys.stderr if arguments.json else sys.stdout)
        yield result


def label(result: Run) -> str:
    """The case, after what is special: the model with experts, a rounded KV cache, a scheme for weights."""
    special = [result.model] if result.model == MIXTURE.name else []
    if result.kv_cache_dtype != "auto":
        special.append(f"{result.kv_cache_dtype} KV cache")
    if result.quantization:
        special.append(result.quantization)
    return " ".join([*special, result.case])


def show(result: Run, stream: TextIO) -> None:
    verdict = "passed" if result.ok else "FAILED"
    details = f"threads: {result.threads}"
    if result.preemptions:
        details += f", preemptions: {result.preemptions}"
    print(
        f"{result.dtype:<9} {label(result):<22} {verdict}: {result.tokens} tokens"
        f" of {result.requests} requests in {result.seconds:.1f} s, {result.tokens_per_second:.1f} tokens/s,"
        f" {details}",
        file=stream,
        flush=True,
    )
    if not result.ok:
        print(f"    {result.problem}", file=stream, flush=True)


def show_ops(ops: Sequence[OpResult], stream: TextIO) -> None:
    wrong = [result for result in ops if not result.ok]
    print(f"{len(ops) - len(wrong)} of {len(ops)} ops agree with plain torch", file=stream, flush=True)
    for result in wrong:
        print(f"    {result}", file=stream, flush=True)


def describe(runs: Sequence[Run], ops: Sequence[OpResult]) -> dict[str, Any]:
    """Return the report as a JSON value; docs/smoke.md explains its fields."""
    problems = [str(result) for result in ops if not result.ok]
    problems += [f"{failed.dtype}, {label(failed)}: {failed.problem}" for failed in runs if not failed.ok]
    seconds = sum(result.seconds for result in runs)
    tokens = sum(result.tokens for result in runs)
    return {
        "schema": 1,
        "ok": not problems,
        "reason": problems[0] if problems else "",
        "version": armllm.__version__,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kernels": {op: entry["target"] for op, entry in kernels.report().items()},
        "targets": list(kernels.targets()),
        "ops": {result.op: result.as_dict() for result in ops},
        "runs": [result.as_dict() for result in runs],
        "tokens_per_second": round(tokens / seconds, 3) if seconds else 0.0,
        "load_seconds": round(sum(result.load_seconds for result in runs), 3),
    }


def summary(report: dict[str, Any]) -> str:
    """Return which target runs which ops, and the verdict."""
    used: dict[str, list[str]] = {}
    for op, target in report["kernels"].items():
        used.setdefault(target, []).append(op)
    lines = [f"{target}: {', '.join(ops)}" for target, ops in used.items()]
    verdict = "ok" if report["ok"] else "FAILED"
    return "\n".join([*lines, f"{verdict}: armllm {report['version']}, torch {report['torch']}"])
