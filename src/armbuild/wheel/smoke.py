"""Run a built wheel on each CPU of the settings: natively on AArch64, under QEMU elsewhere.

The engine's wheel does real inference; any other runs the tests that the user names.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from armbuild.artifact import archives, symbols, variant, wheelfile
from armbuild.errors import MissingError, UsageError
from armbuild.host import process, pythons
from armbuild.target import arm64_root, musl_root, qemu, target_packages
from armbuild.wheel import cpus, sandbox, user_tests
from armbuild.wheel.user_tests import UserTests
from armbuild.wheel.verdict import TIMEOUT, CpuResult, Run, judge, judge_status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from armbuild.wheel.cpus import Cpu
    from armbuild.wheel.sandbox import Sandbox

EXTRAS = ("engine",)
NO_TESTS = UserTests()
OF_ANOTHER_RUNTIME = "if a C++ library of --with has it: --toolchain gcc, since zig's std::string is another"


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


def check(path: Path, tests: UserTests = NO_TESTS) -> wheelfile.WheelFile:
    """Return the wheel if the smoke test can run it; raises UsageError that says in a line why not."""
    wheel = wheelfile.read(path)
    wrong = wheelfile.mismatches(wheel)
    if wrong:
        raise UsageError(f"{path.name} is for another machine or misnamed: {wrong[0]}")
    tests.check()
    if wheel.name != "armllm" and not tests:
        raise UsageError(f"{path.name}: only armllm has a smoke test: add --import NAME or --command TEXT")
    return wheel


def python_for(wheel: wheelfile.WheelFile, *, emulated: bool) -> str:
    """Return the Python to run a wheel with: its own, or for one that serves several, one that is there."""
    if wheel.is_musl:
        if not emulated:
            raise MissingError("this machine's Python is not for musl: QEMU runs one, with --cpu neoverse-n1")
        return wheel.python or musl_root.PYTHON
    if wheel.is_free_threaded and platform.machine() != "aarch64":
        raise MissingError(f"{wheel.path.name}: no Debian release carries a free-threaded Python to emulate")
    if wheel.python:
        return wheel.python
    running = pythons.running()
    there = [running, *arm64_root.SUITES]
    fitting = [version for version in there if wheel.serves(version) and (version in arm64_root.SUITES)]
    if platform.machine() == "aarch64" and wheel.serves(running):
        return running
    if not fitting:
        raise MissingError(f"{wheel.path.name}: it needs a Python that no Debian release carries")
    return fitting[0]


def smoke_test(
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
    that the wheel requires is not available. A run that lasts longer than ``timeout`` seconds has failed.
    """
    wheel = check(path, tests)
    cores = cpus.check_names(names)
    models = tuple(cpu.model for cpu in cores if cpu.model)
    emulator = qemu.find(models, mirror=mirror) if models else None
    python = python_for(wheel, emulated=bool(models))
    log = work / "smoke-install.log"
    host = pythons.find_or_none(python)
    packages = target_packages.requirements(wheel, python, () if tests else EXTRAS)
    on_step(f"AArch64 packages for Python {python}")
    packages = sorted({*packages, *tests.requires})
    site = target_packages.cached(packages, python, host=host, log=log, musl=wheel.is_musl)
    own = _install(wheel, python, host, work, log)
    root: Path | None = None
    if emulator:
        on_step(f"AArch64 root with Python {python}")
        root = _root(wheel, python, host, log, mirror)
    prefix: list[str | Path] = [emulator, "-L", root] if emulator and root else []
    interpreter = arm64_root.interpreter(root, python) if root else pythons.find(python).executable
    starts = {cpu.name: [*prefix, *(("-cpu", cpu.model) if cpu.model else ()), interpreter] for cpu in cores}
    env = environment(own, site, work, emulated=bool(models))
    if tests and root:
        env["PYTHONHOME"] = str(root / "usr")
    if tests:
        folders = {name: work / "programs" / name for name in starts}
        for name, start in starts.items():
            user_tests.programs(folders[name], start, start[:-1], (own, site))
        runs = _user_tests(tests, folders, own, env, timeout)
    else:
        runs = _engine_tests(path, cores, starts, env)
    box = None
    if tests.sandbox:
        shown = tests.project if "{project}" in tests.command else None
        readable = [own, work / "programs", *((shown, *sandbox.repository(shown)) if shown else ())]
        readable += [*sandbox.interpreters(interpreter), *((emulator,) if emulator else ())]
        box = sandbox.make(work, readable=readable, writable=(work / "home", work / "run"), mirror=mirror)
    results = _run_all(cores, runs, box, work=work, timeout=timeout, on_result=on_result)
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


def _user_tests(
    tests: UserTests, folders: Mapping[str, Path], own: Path, env: Mapping[str, str], timeout: float
) -> dict[str, _Test]:
    """Return the user's tests for each CPU, with the programs in its folder."""
    return {
        name: _Test(
            [user_tests.script(tests, folder, own)],
            {**env, "PATH": f"{folder}:{env['PATH']}"},
            functools.partial(judge_status, timeout=timeout),
        )
        for name, folder in folders.items()
    }


def _engine_tests(
    path: Path,
    cores: Sequence[Cpu],
    starts: Mapping[str, Sequence[str | Path]],
    env: Mapping[str, str],
) -> dict[str, _Test]:
    """Return the engine's own test for each CPU."""
    available = kernel_targets(path)
    program = ("-m", "armllm.smoke", "--json")
    return {
        cpu.name: _Test(
            [*starts[cpu.name], *program, *(("--emulated",) if cpu.model else ())],
            env,
            lambda run, status: judge(run, status, available),
        )
        for cpu in cores
    }


EMULATED = {
    # Emulated threads that spin keep others from running; OpenBLAS's, which numpy starts, never stop.
    "OMP_WAIT_POLICY": "passive",
    "OPENBLAS_NUM_THREADS": "1",
    # QEMU runs SVE code some ten times slower than NEON code. What torch computes by itself is not what the
    # smoke test checks, so torch's NEON code does it; oneDNN has no switch but --emulated.
    "OPENBLAS_CORETYPE": "ARMV8",
    "ATEN_CPU_CAPABILITY": "default",
}
# For QEMU's own C library: a memset without AVX-512 ends with the VZEROUPPER that --emulated counts on.
QEMU = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW"}


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
        **(EMULATED | QEMU if emulated else {}),
    }


def kernel_targets(path: Path) -> frozenset[str] | None:
    """Return the kernel targets that the wheel says it holds, None if it does not say."""
    with archives.open_zip(path) as archive:
        try:
            return frozenset(json.loads(archives.read_text(archive, "armllm/build_info.json"))["targets"])
        except (KeyError, RecursionError, TypeError, ValueError):
            return None


def _run_all(
    cores: Sequence[Cpu],
    tests: Mapping[str, _Test],
    box: Sandbox | None,
    *,
    work: Path,
    timeout: float,
    on_result: Callable[[CpuResult], None],
) -> tuple[CpuResult, ...]:
    """Run the CPUs side by side, at most two and no more than there are cores: memory is limited too."""
    waiting, running, results = list(cores), list[Run](), dict[str, CpuResult]()
    places = min(2, len(os.sched_getaffinity(0)))
    try:
        while waiting or running:
            while waiting and len(running) < places:
                cpu = waiting.pop(0)
                running.append(_start(cpu, tests[cpu.name], box, work, timeout))
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
    return tuple(results[cpu.name] for cpu in cores)


def _start(cpu: Cpu, test: _Test, box: Sandbox | None, work: Path, timeout: float) -> Run:
    output, log = work / f"smoke-{cpu.name}.out", work / f"smoke-{cpu.name}.log"
    here = work / "run" / cpu.name  # empty: the wheel's modules are found where they are installed
    here.mkdir(parents=True)
    command = box.command(test.command, here) if box else test.command
    running = process.start(
        command, output=output, log=log, cwd=here, env=test.env, timeout=timeout, what="smoke"
    )
    return Run(cpu=cpu, poll=running.poll, output=output, log=log, start=time.monotonic())


def explain_failure(report: SmokeReport, path: Path) -> str:
    """Return which CPU failed, and why; for a module that is not there, what the wheel at ``path`` has."""
    failed = next(result for result in report.results if not result.passed)
    if "undefined symbol: _Z" in failed.reason:
        return f"{failed.cpu}: {failed.reason}\n  {OF_ANOTHER_RUNTIME}"
    if not (missing := re.search(r"No module named '?(\w+)", failed.reason)):
        return f"{failed.cpu}: {failed.reason}"
    modules = wheelfile.extension_modules(path)
    more = f" and {len(modules) - 5} more" if len(modules) > 5 else ""
    hints = []
    if modules:
        hints.append(f"modules of machine code in it: {', '.join(modules[:5])}{more}")
    if missing[1] not in {name.partition(".")[0] for name in modules}:
        hints.append(f"if {missing[1]} is another package's: --requires names that package")
    return "\n  ".join((f"{failed.cpu}: {failed.reason}", *hints))


def _installable(path: Path, work: Path) -> Path:
    """Return the wheel under a name that installers take: a variant's copy without its label."""
    plain, label = variant.split(path.name)
    if label is None:
        return path
    copied = work / "plain" / plain
    copied.parent.mkdir(exist_ok=True)
    shutil.copyfile(path, copied)
    return copied


def _install(
    wheel: wheelfile.WheelFile, python: str, host: pythons.HostPython | None, work: Path, log: Path
) -> Path:
    """Install the wheel alone, and return the folder that it is in."""
    own = work / "site"
    newest = target_packages.MUSL if wheel.is_musl else target_packages.NEWEST
    package = _installable(wheel.path, work)
    target_packages.install([package], python, own, log=log, dependencies=False, platform=newest)
    if host:
        target_packages.compile_all(host, own, log=log)
    return own


def _root(
    wheel: wheelfile.WheelFile, python: str, host: pythons.HostPython | None, log: Path, mirror: str | None
) -> Path:
    """Return the arm64 root with the libraries that the wheel needs of the system."""
    if wheel.is_musl:
        root = musl_root.make(python, log=log, mirror=mirror)
    else:
        needed = symbols.libraries(wheel.path) & arm64_root.SYSTEM_LIBRARIES.keys()
        system = {arm64_root.SYSTEM_LIBRARIES[name] for name in needed}
        root = arm64_root.make(python, packages=tuple(sorted(system)), mirror=mirror)
    done = root / "compiled"
    if host and not done.exists():
        target_packages.compile_all(host, root / f"usr/lib/python{python}", log=log)
        done.touch()
    return root


def _installed_torch(site: Path) -> str | None:
    found = sorted(site.glob("torch-*.dist-info"))
    return found[0].name.removeprefix("torch-").removesuffix(".dist-info") if found else None
