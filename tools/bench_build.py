#!/usr/bin/env python3
"""What a cross-built wheel costs beside a native one: prints a Markdown table.

    python tools/bench_build.py --repeats 3

Every repeat starts from a fresh copy of the tree and empty caches (armbuild's, zig's, uv's, pip's; ccache is
switched off), builds natively and across, cold, then both again with nothing changed. The two alternate, so
that a busy machine hits both. Build requirements are downloaded each time, as on a fresh machine. zig's own
C++ runtime, which one machine compiles once, is made before the cold cross build and reported by itself.
Needs `armllm[build]`, a C++ compiler, and a Python package index.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = """
import sys
from pathlib import Path
from armbuild import plan
from armbuild.lanes import LANES
chosen = plan.plan(Path(sys.argv[1]), out=Path(sys.argv[2]), cpus=())
setup = LANES[chosen.lane].prepare(chosen, chosen.pythons[0], Path(sys.argv[2]), mirror=None)
setup.runtime(Path(sys.argv[2], "runtime.log"))
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and of CPU time in the process and all it started; what it printed."""

    wall: float
    cpu: float
    output: str


def measure(command: list[str], folder: Path, environment: dict[str, str]) -> Cost:
    """Run a command in a folder; exits with its last lines if it fails."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.perf_counter() - started
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command[:4])} ... failed:\n{errors.read()[-2000:]}")
        return Cost(wall, usage.ru_utime + usage.ru_stime, output.read())


def copy_tree(target: Path) -> None:
    """Copy what git tracks, as it is now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def one_round(work: Path) -> tuple[dict[str, Cost], dict[str, dict[str, float]]]:
    """Build everything once in ``work``; costs by name, and the steps of the two cross builds."""
    environment = {
        **os.environ,
        "ARMBUILD_CACHE_DIR": str(work / "armbuild"),
        "CCACHE_DISABLE": "1",
        "PIP_CACHE_DIR": str(work / "pip"),
        "PYTHONPATH": str(ROOT / "src"),
        "UV_CACHE_DIR": str(work / "uv"),
        "ZIG_GLOBAL_CACHE_DIR": str(work / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(work / "zig"),
    }
    native_tree, cross_tree = work / "native", work / "cross"
    copy_tree(native_tree)
    copy_tree(cross_tree)
    native = [sys.executable, "-m", "build", "--wheel", "--outdir", str(work / "out")]
    cross = [sys.executable, "-m", "armbuild", "wheel", "--no-smoke", "--json", "--out", str(work / "out")]
    costs, steps = {}, {}
    scratch = work / "scratch"
    scratch.mkdir()
    runtime = [sys.executable, "-c", RUNTIME, str(cross_tree), str(scratch)]
    costs["zig's C++ runtime, once per machine"] = measure(runtime, cross_tree, environment)
    for state in ("cold", "warm"):
        # Without the factory's PYTHONPATH: a native build is what any user runs.
        plain = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
        costs[f"native {platform.machine()}, {state}"] = measure(native, native_tree, plain)
        costs[f"armbuild wheel --no-smoke, {state}"] = cost = measure(cross, cross_tree, environment)
        steps[state] = json.loads(cost.output)["wheels"][0]["seconds"]
    return costs, steps


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure native and cross builds of this tree side by side.")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    repeats = max(1, parser.parse_args().repeats)
    if platform.machine() == "aarch64":
        sys.exit("this compares a cross build with a native one: run it on another architecture")
    rounds = []
    for index in range(repeats):
        print(f"round {index + 1} of {repeats}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
            rounds.append(one_round(Path(folder)))
    print(f"Medians of {repeats}, {os.cpu_count()} CPUs, Python {platform.python_version()}:\n")
    print("| build | wall, s | CPU, s | wall beside native | CPU beside native |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in rounds[0][0]:
        costs = [costs[name] for costs, _ in rounds]
        wall = statistics.median(cost.wall for cost in costs)
        cpu = statistics.median(cost.cpu for cost in costs)
        ratios = ["", ""]
        if name.startswith("armbuild"):
            beside = [costs[f"native {platform.machine()}, {name.rpartition(' ')[2]}"] for costs, _ in rounds]
            pairs = list(zip(costs, beside, strict=True))
            ratios = [
                f"{statistics.median(cross.wall / native.wall for cross, native in pairs):.2f}",
                f"{statistics.median(cross.cpu / native.cpu for cross, native in pairs):.2f}",
            ]
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {ratios[0]} | {ratios[1]} |")
    print("\nSteps of `armbuild wheel`, seconds by the clock:\n")
    names = list(rounds[0][1]["cold"])
    print(f"| | {' | '.join(names)} |\n| --- |{' ---: |' * len(names)}")
    for state in ("cold", "warm"):
        medians = [statistics.median(steps[state].get(name, 0.0) for _, steps in rounds) for name in names]
        print(f"| {state} | {' | '.join(f'{value:.1f}' for value in medians)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
