#!/usr/bin/env python3
"""What a wheel for AArch64 costs by each way to build it, beside a native wheel: prints Markdown tables.

    python tools/bench_build.py --project lz4 --project pyyaml --project . --lanes native,cross,container
    python tools/bench_build.py --pythons 3.11,3.12,3.13

Each build starts from the unpacked sources and ends with the repaired wheel, cold: a fresh copy of the tree,
and empty caches (armbuild's, uv's, pip's; compile caches are off), so that build requirements are downloaded
each time. What one machine makes once is made before and told by itself: zig's own C++ runtime, and the
container's image, which must be there. Native is `python -m build` and auditwheel; `again` is a cross build
with nothing changed.

CPU time is that of all processes that a build starts, those that outlive their parents too, such as podman's
containers (docker's belong to its daemon, and are not seen). Needs `armllm[build]`, a C++ compiler and a
Python package index; for the container lane podman and what `armbuild manylinux-image --load podman` makes.
"""

from __future__ import annotations

import argparse
import ctypes
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

from armbuild.wheel import fetch, project, source

LANES = ("native", "cross", "container")
IMAGE = "localhost/manylinux_2_31_aarch64:latest"
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
RUNTIME = """
import sys
from pathlib import Path
from armbuild.wheel import planning, project
from armbuild.wheel.lanes import cross
from armbuild.wheel.settings import Settings
folder = Path(sys.argv[2])
plan = planning.plan(Settings(lane="cross", output=folder), project.read(Path(sys.argv[1])))
setup = cross.prepare(plan, plan.pythons[0], folder, mirror=None)
if setup.runtime:
    setup.runtime(folder / "runtime.log")
"""
NATIVE = """
import pathlib, subprocess, sys
tree, out = sys.argv[1:]
build = ["build", "--installer=uv", "--wheel", "--outdir", out, tree]
subprocess.run([sys.executable, "-m", *build], check=True)
for wheel in pathlib.Path(out).glob("*.whl"):
    repair = ["auditwheel", "repair", "--wheel-dir", out + "/repaired", wheel]
    subprocess.run([sys.executable, "-m", *repair], check=True)
"""


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds by the clock, and of CPU time in all processes."""

    wall: float
    cpu: float
    output: str = ""
    """Standard output."""


def measure(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command; exits with its last lines if it fails."""
    started = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, cpu = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
        output.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command[:4])} ... failed:\n{errors.read()[-2000:]}")
        return Cost(wall, cpu + orphans(), output.read())


def orphans() -> float:
    """Wait for processes that outlived their parents, 20 s at most, and return their CPU time."""
    seconds, deadline = 0.0, time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            found, _, usage = os.wait3(os.WNOHANG)
        except ChildProcessError:
            break
        if found:
            seconds += usage.ru_utime + usage.ru_stime
        else:
            time.sleep(0.05)
    return seconds


def cold(work: Path, zig: Path) -> dict[str, str]:
    """Return the environment of a machine that has built nothing yet but zig's runtime."""
    work.mkdir()
    shutil.copytree(zig, work / "armbuild/zig", symlinks=True)
    return {
        **os.environ,
        "ARMBUILD_CACHE_DIR": str(work / "armbuild"),
        "CCACHE_DISABLE": "1",
        "PIP_CACHE_DIR": str(work / "pip"),
        "UV_CACHE_DIR": str(work / "uv"),
    }


def across(tree: Path, out: Path, *options: str) -> list[str]:
    """Return the command that builds a tree with armbuild."""
    return [
        sys.executable,
        "-m",
        "armbuild",
        "wheel",
        str(tree),
        "--no-smoke",
        "--output",
        str(out),
        *options,
    ]


def build(lane: str, located: fetch.Located, work: Path, zig: Path, image: str) -> dict[str, Cost]:
    """Build a project in one lane, cold, and return the cost of it; across, also of the same once more."""
    environment = cold(work, zig)
    tree = source.mirror(located.folder, work / "tree", complete=located.origin is not None)
    if lane == "native":
        return {lane: measure([sys.executable, "-c", NATIVE, str(tree), str(work / "out")], environment)}
    more = (f"--image={image}", "--engine=podman") if lane == "container" else ()
    command = across(tree, work / "out", f"--lane={lane}", *more)
    costs = {lane: measure(command, environment)}
    return costs | ({"cross, again": measure(command, environment)} if lane == "cross" else {})


def lanes(names: list[str], selected: list[str], *, repeats: int, image: str, work: Path, zig: Path) -> None:
    """Print a row for each project and lane; the lanes alternate, so that other work hits all."""
    print("| project | lane | wall, s | CPU, s | CPU beside native | CPU beside cross |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name in names:
        located = fetch.locate(name)
        described = project.read(located.folder, located.origin)
        rounds = [
            {
                row: cost
                for lane in selected
                for row, cost in build(
                    lane, located, work / f"{described.name}-{lane}-{index}", zig, image
                ).items()
            }
            for index in range(repeats)
        ]
        median = {
            row: Cost(
                *(
                    statistics.median(getattr(costs[row], part) for costs in rounds)
                    for part in ("wall", "cpu")
                )
            )
            for row in rounds[0]
        }
        for row, cost in median.items():
            beside = [
                f"{cost.cpu / median[other].cpu:.2f}" if other in median and other != row else ""
                for other in ("native", "cross")
            ]
            label = f"{described.name} {described.version or ''}".strip()
            print(
                f"| {label} | {row} | {cost.wall:.1f} | {cost.cpu:.1f} | {' | '.join(beside)} |", flush=True
            )


def several(name: str, versions: list[str], work: Path, zig: Path) -> None:
    """Print what the wheels for several Pythons cost in one call, one after the other."""
    located = fetch.locate(name)
    environment = cold(work / "pythons", zig)
    tree = source.mirror(located.folder, work / "pythons/tree", complete=located.origin is not None)
    options = [f"--python={version}" for version in versions]
    cost = measure(across(tree, work / "out", "--lane=cross", "--json", *options), environment)
    seconds = [wheel["cpu_seconds"] for wheel in json.loads(cost.output)["wheels"]]
    print("| Pythons | Python | CPU, s | CPU so far beside one |")
    print("| ---: | --- | ---: | ---: |")
    for index, version in enumerate(versions):
        ratio = sum(seconds[: index + 1]) / seconds[0]
        print(f"| {index + 1} | {version} | {seconds[index]:.1f} | {ratio:.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure builds of one project or several, side by side.")
    parser.add_argument(
        "--project", action="append", help="a folder, an sdist, a requirement; default: this tree"
    )
    parser.add_argument(
        "--lanes", default="native,cross", help=f"of {', '.join(LANES)}; default: native,cross"
    )
    parser.add_argument("--image", default=IMAGE, help="the container lane's image, which podman has")
    parser.add_argument("--repeats", type=int, default=1, metavar="N")
    parser.add_argument("--pythons", help="measure this many Pythons in one cross build instead: 3.11,3.12")
    options = parser.parse_args()
    selected = options.lanes.split(",")
    if unknown := set(selected) - set(LANES):
        parser.error(f"--lanes {', '.join(unknown)}: there are {', '.join(LANES)}")
    if platform.machine() == "aarch64":
        sys.exit("this compares builds for another machine with a native one: run it on another architecture")
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what outlives its parent becomes our child
    names = options.project or [str(Path(__file__).resolve().parent.parent)]
    with tempfile.TemporaryDirectory(prefix="bench-build-") as folder:
        work = Path(folder)
        (work / "scratch").mkdir()
        zig, before = work / "first/zig", ""
        zig.mkdir(parents=True)
        if options.pythons or "cross" in selected:
            environment = {**os.environ, "ARMBUILD_CACHE_DIR": str(zig.parent)}
            first = str(fetch.locate(names[0]).folder)
            runtime = measure([sys.executable, "-c", RUNTIME, first, str(work / "scratch")], environment)
            before = (
                f"zig's own C++ runtime, once per machine: {runtime.wall:.1f} s, CPU {runtime.cpu:.1f} s. "
            )
        if options.pythons:
            several(names[0], options.pythons.split(","), work, zig)
        else:
            repeats = max(1, options.repeats)
            lanes(names, selected, repeats=repeats, image=options.image, work=work, zig=zig)
    print(f"\n{before}{os.cpu_count()} CPUs, Python {platform.python_version()}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
