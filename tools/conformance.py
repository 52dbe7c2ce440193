"""Build the kernels' conformance runner and run it: natively, and under QEMU on several Arm cores.

    tools/conformance.py                      natively (x86-64), then the default cores
    tools/conformance.py --native             natively only
    tools/conformance.py --cpu neoverse-v1    every target, on this core only (may be repeated; so is
                                              "max,sve=off" written)
    tools/conformance.py --keep DIR           leave the builds in DIR, where the next run finds them
    tools/conformance.py -- --op exp          what follows goes to the runner

The AArch64 runner is built by zig, static, so that QEMU needs no root file system. Exit status: 0 every run
passed, 1 one failed, 3 a tool is missing, 4 a build failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from armbuild.errors import ArmbuildError, BuildError, MissingError
from armbuild.target import qemu
from armbuild.wheel.smoke import QEMU

ROOT = Path(__file__).resolve().parent.parent
# What a core must choose is seen from these; where another runs the same kernels whole, they are enough.
SOME = [
    "dispatch", "paged_attention_f32", "paged_attention_f16", "paged_attention_bf16",
    "paged_attention_int8_f16", "paged_attention_int8_bf16", "matmul_w4a8_f32", "matmul_w8a8_bf16",
    "silu_and_mul_f32", "rms_norm_bf16", "moe_w4a8_f32",
]  # fmt: skip
SAMPLE = ("--chosen", *(word for op in SOME for word in ("--op", op)))
# Chosen or not: the scalar kernels, which no Arm core chooses, run beside those of NEON.
FEW = tuple(
    word
    for op in (*SOME[:2], "matmul_w4a8_f32", "silu_and_mul_f32", "rms_norm_bf16")
    for word in ("--op", op)
)


def _whole(*targets: str) -> tuple[str, ...]:
    return tuple(word for target in targets for word in ("--target", target))


# Core as QEMU names it, and what to run there. A kernel is the same code on every core, so each target runs
# whole on one core; SVE runs whole with two vector lengths, and a few of its ops with others. Scalar kernels
# run whole natively. A length that is no power of two is only refused.
CPUS = {
    "cortex-a53": ("--chosen",),
    "cortex-a72": FEW,
    "cortex-a76": SAMPLE,
    "neoverse-n1": _whole("dotprod"),
    "neoverse-n2": SAMPLE,
    "neoverse-v1": _whole("fhm", "bf16", "i8mm", "sve"),
    "a64fx": _whole("sve512"),
    **{
        f"max,sve-max-vq={length // 128},sve-default-vector-length={length // 8}": what
        for length, what in (
            (128, _whole("sve")),
            (512, (*_whole("sve"), *FEW)),
            (2048, (*_whole("sve", "sve512"), *FEW)),
        )
    },
    "max,sve-max-vq=3": ("--chosen", "--op", "silu_and_mul_f32", "--op", "dispatch"),
}
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g1"


def _require(module: str) -> None:
    if subprocess.run(
        [sys.executable, "-c", f"import {module}"], capture_output=True, check=False
    ).returncode:
        raise MissingError(f"Python package {module} is missing: pip install {module}")


def _toolchain(folder: Path) -> Path:
    """Write programs that call zig for static AArch64 code, and the CMake toolchain file that names them."""
    _require("ziglang")
    arguments = {
        "c++": "c++ -target aarch64-linux-musl -fno-sanitize=undefined -g0",
        "ar": "ar",
        "ranlib": "ranlib",
    }
    for name, call in arguments.items():
        program = folder / f"zig-{name}"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {call} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    file = folder / "toolchain.cmake"
    file.write_text(
        "set(CMAKE_SYSTEM_NAME Linux)\n"
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\n"
        f'set(CMAKE_CXX_COMPILER "{folder}/zig-c++")\n'
        f'set(CMAKE_AR "{folder}/zig-ar" CACHE FILEPATH "")\n'
        f'set(CMAKE_RANLIB "{folder}/zig-ranlib" CACHE FILEPATH "")\n'
        "set(CMAKE_EXE_LINKER_FLAGS_INIT -static)\n",
        encoding="utf-8",
    )
    return file


def configure(
    folder: Path,
    *options: str,
    arm64: bool = False,
    sanitize: bool = False,
    source: Path = ROOT,
) -> list[str]:
    """Return CMake's command line, with further ``options``, for the runner. Raises MissingError."""
    _require("cmake")
    _require("ninja")
    command = [
        sys.executable, "-m", "cmake", "-G", "Ninja", "-S", str(source), "-B", str(folder),
        f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja') or Path(sys.executable).parent / 'ninja'}",
        f"-DPython_EXECUTABLE={sys.executable}",
        "-DCMAKE_BUILD_TYPE=Release", "-DARMLLM_PYTHON=OFF", "-DARMLLM_CONFORMANCE=ON", "-DARMLLM_WERROR=ON",
        *options,
    ]  # fmt: skip
    if arm64:
        command.append(f"-DCMAKE_TOOLCHAIN_FILE={_toolchain(folder)}")
    if sanitize:
        # -O3 would take minutes. GCC 12 warns of its own immintrin.h where that is not optimized away.
        command += [f"-DCMAKE_CXX_FLAGS={SANITIZERS}", "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DARMLLM_WERROR=OFF"]
    return command


def build(
    folder: Path,
    *options: str,
    arm64: bool = False,
    sanitize: bool = False,
    source: Path = ROOT,
    program: str = "conformance",
) -> Path:
    """Build the runner of ``source``, or another ``program`` of its folder, in ``folder``; return its path.

    Raises BuildError, MissingError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command_line = configure(folder, *options, arm64=arm64, sanitize=sanitize, source=source)
    compile_line = [sys.executable, "-m", "cmake", "--build", str(folder), "--target", program]
    for command in (command_line, [*compile_line, "--parallel", "2"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            output = done.stdout + done.stderr
            lines = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()[
                -5:
            ]
            log = folder / "build.log"
            log.write_text(output, encoding="utf-8")
            raise BuildError(
                f"{program} did not build: {lines[0].strip() if lines else 'no output'} (log: {log})"
            )
    return folder / "conformance" / program


def run(name: str, command: list[str]) -> bool:
    """Run one runner, show its output, return whether it passed."""
    print(f"== {name}", flush=True)
    start = time.monotonic()
    status = subprocess.run(command, env={**os.environ, **QEMU}, check=False).returncode
    seconds = time.monotonic() - start
    what = "passed" if status == 0 else f"FAILED with status {status}"
    print(f"== {name}: {what} in {seconds:.0f} s", flush=True)
    return status == 0


def main() -> int:
    """Parse the command line, build, run, sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--native", action="store_true", help="run natively only")
    parser.add_argument("--cpu", action="append", default=[], metavar="NAME", help="a core that QEMU knows")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build here and leave it")
    parser.add_argument("--sanitize", action="store_true", help="native run under AddressSanitizer and UBSan")
    parser.add_argument("runner", nargs="*", help="arguments for the runner, after --")
    options = parser.parse_args()
    native = options.native or options.sanitize or not options.cpu
    everything: tuple[str, ...] = ()
    if options.cpu:
        cpus = dict.fromkeys(options.cpu, everything)
    else:
        cpus = {} if options.native or options.sanitize else dict(CPUS)

    with tempfile.TemporaryDirectory(prefix="conformance-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        passed = {}
        # Whatever is missing is said before anything is built.
        emulator = qemu.find(tuple(cpu.partition(",")[0] for cpu in cpus)) if cpus else None
        if native:
            name = f"{platform.machine()}, native" + (", sanitized" if options.sanitize else "")
            runner = build(
                folder / ("sanitized" if options.sanitize else "native"), sanitize=options.sanitize
            )
            passed[name] = run(name, [str(runner), *options.runner])
        if emulator is not None:
            runner = build(folder / "aarch64", arm64=True)
            for cpu, what in cpus.items():
                passed[cpu] = run(cpu, [str(emulator), "-cpu", cpu, str(runner), *(options.runner or what)])
    failed = [name for name, ok in passed.items() if not ok]
    print(
        f"{len(passed) - len(failed)} of {len(passed)} runs passed"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.pop("ARMLLM_ISA", None)  # the runner tests the cap itself
    try:
        sys.exit(main())
    except ArmbuildError as error:
        print(f"conformance: {error}", file=sys.stderr)
        sys.exit(error.status)
