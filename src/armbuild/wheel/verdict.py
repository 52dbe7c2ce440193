"""The verdict on a run on one CPU: from its report, its exit status and the kernels that ran."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from armbuild.artifact import archives
from armbuild.errors import CheckFailed
from armbuild.host import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from armbuild.wheel.cpus import Cpu


TIMEOUT = 1200.0
EXPERTS = "mixture"
"""The smoke model that is a mixture of experts, as a report's runs name it."""
TORCH_FLOOR = frozenset({"atomics"})
"""Features (Linux names) without which torch 2.10's AArch64 wheel dies while it is imported: a static
initializer executes LDADDAL, an atomic instruction of Armv8.1 (pytorch/pytorch#174344, seen under QEMU
too)."""


@dataclass(frozen=True, kw_only=True)
class CpuResult:
    """What happened on one CPU."""

    cpu: str
    passed: bool
    reason: str
    """Why not, in a sentence; empty when it passed."""
    kernels: Mapping[str, str]
    """Op -> target, as the engine reported them."""
    tokens_per_second: float | None
    seconds: float
    report: Mapping[str, Any] | None
    """What ``python -m armllm.smoke --json`` said."""
    said: str = ""
    """The last line of a user's test that passed."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A smoke test that was started on one CPU."""

    cpu: Cpu
    poll: Callable[[], int | None]
    output: Path
    log: Path
    start: float


def judge_status(run: Run, status: int, *, timeout: float = TIMEOUT) -> CpuResult:
    """Turn a user's test into a verdict: its exit status decides, its last line says what happened."""
    seconds = time.monotonic() - run.start
    printed = failure.read_log(run.output).strip()
    heard = failure.read_log(run.log).partition("\n")[2].strip()
    number = -status if status < 0 else status - 128
    text = printed or heard
    reason = ""
    if number == signal.SIGILL:
        reason = f"killed by an illegal instruction (SIGILL) on {run.cpu.name} (log: {run.log})"
    elif number == signal.SIGBUS:
        reason = (
            f"killed by SIGBUS on {run.cpu.name}: an atomic access that is not aligned, or memory behind the "
            f"end of a mapped file (log: {run.log}, {run.output})"
        )
    elif seconds >= timeout:
        reason = f"it did not end within {timeout:.0f} s (log: {run.log})"
    elif status:
        killed = f"was killed by {signal.Signals(number).name}" if number in set(signal.Signals) else ""
        last = ((heard if "error" in heard.casefold() else text) or "it said nothing").splitlines()[-1]
        reason = f"it {killed or f'ended with status {status}'}: {last[:300]} (log: {run.log}, {run.output})"
    return CpuResult(
        cpu=run.cpu.name,
        passed=not reason,
        reason=reason,
        kernels={},
        tokens_per_second=None,
        seconds=round(seconds, 1),
        report=None,
        said="" if reason or not text else text.splitlines()[-1].strip("= ")[:200],
    )


def judge(run: Run, status: int, available: frozenset[str] | None) -> CpuResult:
    """Turn what a run left behind into a verdict; kernels must be those that this CPU must choose."""
    cpu, log, seconds = run.cpu, run.log, time.monotonic() - run.start
    report = _read_report(run.output)
    kernels = dict(report["kernels"]) if report else {}
    reason = ""
    if status in (-signal.SIGILL, 128 + signal.SIGILL):
        reason = _illegal_instruction(cpu, log)
    elif report is None:
        error = failure.first_error(failure.read_log(log).partition("\n")[2])
        how = f"killed by {_signal_name(-status)} after" if status < 0 else f"ended with status {status}:"
        reason = f"it was {how} {error} (log: {log})" if status < 0 else f"it {how} {error} (log: {log})"
    elif status or not report.get("ok"):
        reason = str(report.get("reason") or "")[:300] or f"it said no, with status {status} (log: {log})"
    elif missing := _left_out(report):
        reason = f"it did not {missing}"
    else:
        wanted = cpu.isa.kernels(available)
        wrong = [op for op in wanted if kernels.get(op) != wanted[op]]
        if wrong:
            op = wrong[0]
            reason = f"{op} ran {kernels.get(op, 'nothing')} where {cpu.name} must choose {wanted[op]}"
    return CpuResult(
        cpu=cpu.name,
        passed=not reason,
        reason=reason,
        kernels=kernels,
        tokens_per_second=report.get("tokens_per_second") if report else None,
        seconds=round(seconds, 1),
        report=report,
    )


def _read_report(output: Path) -> dict[str, Any] | None:
    """Return what a wheel says of its test; None unless it has the shape that ours have."""
    try:
        report = json.loads(archives.file_text(output))
        _left_out(report)
        shaped = isinstance(report.setdefault("kernels", {}), dict)
    except (CheckFailed, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
    return report if shaped else None


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _left_out(report: Mapping[str, Any]) -> str:
    """Return which part of the test is missing from a report that says yes; empty when none is."""
    if not report.get("ops"):
        return "compare its ops with plain torch"
    recited = [run for run in report.get("runs", []) if run.get("ok")]
    runs = [run for run in recited if run.get("model") != EXPERTS]
    quantized = {run.get("quantization") or "" for run in runs}
    caches = {run.get("kv_cache_dtype", "auto") for run in runs}
    runs = [
        run for run in runs if not run.get("quantization") and run.get("kv_cache_dtype", "auto") == "auto"
    ]
    for dtype in ("float32", "bfloat16"):
        sizes = [run["requests"] for run in runs if run["dtype"] == dtype]
        if 1 not in sizes:
            return f"recite alone in {dtype}"
        if max(sizes) < 2:
            return f"recite in a batch in {dtype}"
    for bits in (8, 4):
        if not any(scheme.startswith(f"int{bits}") for scheme in quantized):
            return f"recite with weights of {bits} bits"
    if "int8" not in caches:
        return "recite with a KV cache of int8"
    return _left_out_of_experts(
        {run.get("quantization") or "" for run in recited if run.get("model") == EXPERTS}
    )


def _left_out_of_experts(schemes: set[str]) -> str:
    if "" not in schemes:
        return "recite with experts"
    return "" if any(scheme.startswith("int4") for scheme in schemes) else "recite with experts of 4 bits"


def _illegal_instruction(cpu: Cpu, log: Path) -> str:
    if TORCH_FLOOR - cpu.isa.features:
        return (
            f"torch 2.10 needs a newer core than {cpu.name}: its own code uses the atomic instructions of "
            "Armv8.1, which this core lacks, and is killed by SIGILL at import; the kernels alone do run"
        )
    return f"killed by an illegal instruction (SIGILL) on {cpu.name} (log: {log})"
