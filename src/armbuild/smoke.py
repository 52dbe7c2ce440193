"""Run a built wheel on each CPU asked for: natively on AArch64, under QEMU elsewhere.

The engine's wheel does real inference; any other runs the tests that the user names.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import signal
import sys
import time
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from armbuild import arm64_root, isa, process, pythons, qemu, target_packages, user_tests, wheelfile
from armbuild.errors import MissingError, UsageError
from armbuild.user_tests import UserTests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

NATIVE = "native"
"""The CPU name that stands for this machine itself."""
EXTRAS = ("engine",)
TIMEOUT = 1200.0
NO_TESTS = UserTests()
TORCH_FLOOR = frozenset({"atomics"})
"""Features (Linux names) without which torch 2.10's AArch64 wheel dies while it is imported: a static
initialiser executes LDADDAL, an atomic instruction of Armv8.1 (pytorch/pytorch#174344, seen under QEMU
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
class SmokeReport:
    """The smoke test of one wheel."""

    wheel: str
    python: str
    torch: str | None
    results: tuple[CpuResult, ...]
    tests: tuple[str, ...] = ()
    """What was run, where the user named it; empty: the engine's own test."""

    @property
    def ok(self) -> bool:
        """Whether every CPU passed."""
        return bool(self.results) and all(result.passed for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON value."""
        return {"schema": 1, "ok": self.ok, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """A CPU to run on."""

    name: str
    model: str | None
    """QEMU's name for it; None: this machine."""
    isa: isa.Isa


def check_names(names: Sequence[str]) -> tuple[Cpu, ...]:
    """Return the CPUs named; raises UsageError for a name that nobody knows or that QEMU has no model of."""
    chosen = []
    for name in dict.fromkeys(names):
        if name == NATIVE:
            if platform.machine() != "aarch64":
                raise UsageError(
                    f"--cpu native: this is {platform.machine()}; name a core, such as neoverse-n1"
                )
            chosen.append(Cpu(name=name, model=None, isa=isa.detect()))
            continue
        core = isa.Isa.from_target(name)
        model = (core.cores[0].name or name).lower().removeprefix("qemu ").replace(" ", "-")
        if model not in qemu.MODELS:
            listed = ", ".join(sorted(qemu.MODELS))
            raise UsageError(f"--cpu {name}: QEMU has no model of {model}; it has {listed}")
        chosen.append(Cpu(name=name, model=model, isa=core))
    return tuple(chosen)


def default_cpus() -> tuple[str, ...]:
    """Return this machine on AArch64; elsewhere an old and a new server core and all that QEMU can do."""
    return (NATIVE,) if platform.machine() == "aarch64" else ("neoverse-n1", "neoverse-v1", "max")


def check(path: Path, tests: UserTests = NO_TESTS) -> wheelfile.WheelFile:
    """Return the wheel if the smoke test can run it; raises UsageError that says in a line why not."""
    wheel = wheelfile.read(path)
    wrong = wheelfile.mismatches(wheel)
    if wrong:
        raise UsageError(f"{path.name} is for another machine or misnamed: {wrong[0]}")
    tests.check()
    if wheel.name != "armllm" and not tests:
        raise UsageError(
            f"{path.name}: only armllm carries a smoke test of its own: say --import NAME or --command TEXT"
        )
    return wheel


def python_for(wheel: wheelfile.WheelFile) -> str:
    """Return the Python to run a wheel with: its own, or for one that serves several, one that is there."""
    if wheel.python:
        return wheel.python
    running = "{}.{}".format(*sys.version_info[:2])
    there = [running, *arm64_root.SUITES]
    fitting = [version for version in there if wheel.serves(version) and (version in arm64_root.SUITES)]
    if platform.machine() == "aarch64" and wheel.serves(running):
        return running
    if not fitting:
        raise MissingError(f"{wheel.path.name}: it needs a Python that no Debian release carries")
    return fitting[0]


def smoke(
    path: Path,
    names: Sequence[str],
    work: Path,
    *,
    tests: UserTests = NO_TESTS,
    mirror: str | None = None,
    timeout: float = TIMEOUT,
    on_step: Callable[[str], None] = lambda _what: None,
    on_result: Callable[[CpuResult], None] = lambda _result: None,
) -> SmokeReport:
    """Install the wheel at ``path`` for AArch64 and run ``tests``, or the engine's own, on each CPU named.

    Raises UsageError for a wheel, CPU or test it cannot use, MissingError when QEMU, the root or a package
    that the wheel requires cannot be had. A run that lasts longer than ``timeout`` seconds has failed.
    """
    wheel = check(path, tests)
    chosen = check_names(names)
    models = tuple(cpu.model for cpu in chosen if cpu.model)
    emulator = qemu.find(models, mirror=mirror) if models else None
    python = python_for(wheel)
    log = work / "smoke-install.log"
    host = _host(python)
    packages = target_packages.requirements(wheel, python, () if tests else EXTRAS)
    on_step(f"AArch64 packages for Python {python}")
    site = target_packages.cached(sorted({*packages, *tests.requires}), python, host=host, log=log)
    own = work / "site"
    target_packages.install([path], python, own, log=log, dependencies=False, platform=target_packages.NEWEST)
    if host:
        target_packages.compile_all(host, own, log=log)
    if emulator:
        on_step(f"AArch64 root with Python {python}")
        root = arm64_root.make(python, mirror=mirror)
        _compile_root(root, python, host, log)
        prefix: list[str | Path] = [emulator, "-L", root]
        interpreter = arm64_root.interpreter(root, python)
    else:
        prefix, interpreter = [], pythons.find(python).executable
    starts = {cpu.name: [*prefix, *(("-cpu", cpu.model) if cpu.model else ()), interpreter] for cpu in chosen}
    env = environment(own, site, work, emulated=bool(models))
    if tests:
        if emulator:
            env["PYTHONHOME"] = str(root / "usr")
        programs = {cpu.name: work / "programs" / cpu.name for cpu in chosen}
        for name, start in starts.items():
            user_tests.programs(programs[name], start, start[:-1], (own, site))
        runs = {
            name: _Test(
                [user_tests.script(tests, folder, own)],
                {**env, "PATH": f"{folder}:{env['PATH']}"},
                functools.partial(judge_status, timeout=timeout),
            )
            for name, folder in programs.items()
        }
    else:
        available = kernel_targets(path)
        words = ("-m", "armllm.smoke", "--json")
        runs = {
            cpu.name: _Test(
                [*starts[cpu.name], *words, *(("--emulated",) if cpu.model else ())],
                env,
                lambda run, status: judge(run, status, available),
            )
            for cpu in chosen
        }
    results = _run_all(chosen, runs, work=work, timeout=timeout, on_result=on_result)
    return SmokeReport(
        wheel=path.name,
        python=python,
        torch=_installed_torch(site),
        results=results,
        tests=tests.labels(),
    )


@dataclass(frozen=True)
class _Test:
    """What is started on one CPU, and who says whether it went well."""

    command: Sequence[str | Path]
    env: Mapping[str, str]
    judge: Callable[[Run, int], CpuResult]


EMULATED = {
    # Emulated threads that spin keep others from running; OpenBLAS's, which numpy starts, never stop.
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
    # QEMU runs SVE code some ten times slower than NEON code. What torch computes by itself is not what the
    # smoke test proves, so torch's NEON code does it; oneDNN has no switch but --emulated.
    "OPENBLAS_CORETYPE": "ARMV8",
    "ATEN_CPU_CAPABILITY": "default",
    # For QEMU's own C library: a memset without AVX-512 ends with the VZEROUPPER that --emulated counts on.
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW",
}


def environment(own: Path, site: Path, work: Path, *, emulated: bool) -> dict[str, str]:
    """Return the whole environment of the program under test: nothing of the caller's shell reaches it."""
    home = work / "home"
    home.mkdir(exist_ok=True)
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join((str(own), str(site))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "2",
        **(EMULATED if emulated else {}),
    }


def kernel_targets(path: Path) -> frozenset[str] | None:
    """Return the kernel targets that the wheel says it holds, None if it does not say."""
    with zipfile.ZipFile(path) as archive:
        try:
            return frozenset(json.loads(archive.read("armllm/build_info.json"))["targets"])
        except (KeyError, ValueError):
            return None


def _run_all(
    chosen: Sequence[Cpu],
    tests: Mapping[str, _Test],
    *,
    work: Path,
    timeout: float,
    on_result: Callable[[CpuResult], None],
) -> tuple[CpuResult, ...]:
    """Run the CPUs side by side, at most two and no more than there are cores: memory is limited too."""
    waiting, running, results = list(chosen), list[Run](), dict[str, CpuResult]()
    places = min(2, len(os.sched_getaffinity(0)))
    try:
        while waiting or running:
            while waiting and len(running) < places:
                cpu = waiting.pop(0)
                running.append(_start(cpu, tests[cpu.name], work, timeout))
            for run in list(running):
                status = run.poll()
                if status is not None:
                    running.remove(run)
                    result = tests[run.cpu.name].judge(run, status)
                    results[run.cpu.name] = result
                    on_result(result)
            time.sleep(0.05)
    finally:
        process.stop_all()
    return tuple(results[cpu.name] for cpu in chosen)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A smoke test that was started on one CPU."""

    cpu: Cpu
    poll: Callable[[], int | None]
    output: Path
    log: Path
    start: float


def _start(cpu: Cpu, test: _Test, work: Path, timeout: float) -> Run:
    output, log = work / f"smoke-{cpu.name}.out", work / f"smoke-{cpu.name}.log"
    here = work / "run" / cpu.name  # empty: the wheel's modules are found where they are installed
    here.mkdir(parents=True)
    poll = process.observe(
        test.command, output=output, log=log, cwd=here, env=test.env, timeout=timeout, what="smoke"
    )
    return Run(cpu=cpu, poll=poll, output=output, log=log, start=time.monotonic())


def judge_status(run: Run, status: int, *, timeout: float = TIMEOUT) -> CpuResult:
    """Turn a user's test into a verdict: its exit status decides, its last line says what happened."""
    seconds = time.monotonic() - run.start
    said = run.output.read_text(errors="replace").strip()
    heard = run.log.read_text(errors="replace").partition("\n")[2].strip()
    number = -status if status < 0 else status - 128
    reason = ""
    if number == signal.SIGILL:
        reason = f"killed by an illegal instruction (SIGILL) on {run.cpu.name} (log: {run.log})"
    elif seconds >= timeout:
        reason = f"it did not end within {timeout:.0f} s (log: {run.log})"
    elif status:
        killed = f"was killed by {signal.Signals(number).name}" if number in set(signal.Signals) else ""
        last = ((heard if "Error" in heard else said) or said or heard or "it said nothing").splitlines()[-1]
        reason = f"it {killed or f'ended with status {status}'}: {last[:300]} (log: {run.log}, {run.output})"
    return CpuResult(
        cpu=run.cpu.name,
        passed=not reason,
        reason=reason,
        kernels={},
        tokens_per_second=None,
        seconds=round(seconds, 1),
        report=None,
        said="" if reason or not (said or heard) else (said or heard).splitlines()[-1].strip("= "),
    )


def judge(run: Run, status: int, available: frozenset[str] | None) -> CpuResult:
    """Turn what a run left behind into a verdict; kernels must be those that this CPU must choose."""
    cpu, log, seconds = run.cpu, run.log, time.monotonic() - run.start
    try:
        report = json.loads(run.output.read_text(errors="replace"))
    except ValueError:
        report = None
    kernels = dict(report.get("kernels", {})) if report else {}
    reason = ""
    if status in (-signal.SIGILL, 128 + signal.SIGILL):
        reason = _illegal_instruction(cpu, log)
    elif report is None:
        said = process.first_error(log.read_text(errors="replace").partition("\n")[2])
        how = (
            f"killed by {signal.Signals(-status).name} after"
            if status < 0
            else f"ended with status {status}:"
        )
        reason = f"it was {how} {said} (log: {log})" if status < 0 else f"it {how} {said} (log: {log})"
    elif status or not report.get("ok"):
        reason = report.get("reason") or f"it said no, with status {status} (log: {log})"
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


def _left_out(report: Mapping[str, Any]) -> str:
    """Return which part of the test is missing from a report that says yes; empty when none is."""
    if not report.get("ops"):
        return "compare its ops with plain torch"
    runs = [run for run in report.get("runs", []) if run.get("ok")]
    for dtype in ("float32", "bfloat16"):
        sizes = [run["requests"] for run in runs if run["dtype"] == dtype]
        if 1 not in sizes:
            return f"recite alone in {dtype}"
        if max(sizes) < 2:
            return f"recite in a batch in {dtype}"
    return ""


def _illegal_instruction(cpu: Cpu, log: Path) -> str:
    if TORCH_FLOOR - cpu.isa.features:
        return (
            f"torch 2.10 needs a newer core than {cpu.name}: its own code uses the atomic instructions of "
            "Armv8.1, which this core lacks, and is killed by SIGILL at import; the kernels alone do run"
        )
    return f"killed by an illegal instruction (SIGILL) on {cpu.name} (log: {log})"


def explain_failure(report: SmokeReport) -> str:
    """Return which CPU failed, and why."""
    failed = next(result for result in report.results if not result.passed)
    return f"{failed.cpu}: {failed.reason}"


def _host(python: str) -> pythons.HostPython | None:
    """Return a host interpreter whose bytecode the target reads, if there is one."""
    try:
        return pythons.find(python)
    except (MissingError, UsageError):
        return None


def _compile_root(root: Path, python: str, host: pythons.HostPython | None, log: Path) -> None:
    done = root / "compiled"
    if host and not done.exists():
        target_packages.compile_all(host, root / f"usr/lib/python{python}", log=log)
        done.touch()


def _installed_torch(site: Path) -> str | None:
    found = sorted(site.glob("torch-*.dist-info"))
    return found[0].name.removeprefix("torch-").removesuffix(".dist-info") if found else None
