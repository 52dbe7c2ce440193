"""Count the instructions of a layer's quantized products under QEMU, in the inner loops and around them.

    tools/count_instructions.py                            both targets, all schemes, 64 and 512 rows
    tools/count_instructions.py --target i8mm --scheme int4-g32 --rows 64
    tools/count_instructions.py --layer 1.1B --check       fail when a quarter or more is outside the loops

One call per matrix of a layer (query, key and value; output; gate and up; down), bf16 activations, one thread
unless said otherwise. The loops are those that ARMLLM_LOOP names in csrc. Exit status: 0 done, 1 the check
failed, 3 a tool is missing, 4 a build or a call failed.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import conformance
import qemu_trace
from armbuild.errors import ArmbuildError, BuildError
from armbuild.target import qemu
from armbuild.wheel.smoke import QEMU

LAYERS = {
    "0.5B": ((1152, 896), (896, 896), (9728, 896), (896, 4864)),
    "1.1B": ((2560, 2048), (2048, 2048), (11264, 2048), (2048, 5632)),
}
"""Output and input features of a layer's matrices: those of Qwen2.5-0.5B and of TinyLlama-1.1B."""
TARGETS = {"dotprod": "neoverse-n1", "i8mm": "neoverse-v1"}
SCHEMES = {
    "int8": (8, 0),
    "int8-g32": (8, 32),
    "int8-g128": (8, 128),
    "int4-g32": (4, 32),
    "int4-g32-bf16": (4, "32-bf16"),
    "int4-g128": (4, 128),
    "int4": (4, 0),
}
"""Bits and group size; scales are float32, or bfloat16 where the name says so."""
MOST = 0.25
LOOP, TILE, DECODE, EPILOGUE, QUANTIZE, DRIVER = "loop", "tile", "decode", "epilogue", "quantize", "driver"
UPDATE = re.compile(r"(?:stl?x[rp]|cas|swp|ldadd|ldset|ldclr)\w*\s")
PARTS = (TILE, DECODE, EPILOGUE, QUANTIZE, DRIVER)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """Instructions by part: marked loops, the tile around them, decoding, epilogue, quantization, driver.

    ``updates``: those that write what threads share, as store-exclusives or atomic instructions.
    """

    parts: dict[str, int]
    updates: int = 0

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def outside(self) -> float:
        """What is not in the loops, as a share of all."""
        return 1 - self.parts.get(LOOP, 0) / self.total

    def share(self, part: str) -> float:
        return self.parts.get(part, 0) / self.total


def part_of(function: str) -> str:
    """Return which part of a product a function is, by its name, loops aside."""
    pieces = {
        "_tile": TILE,
        "decode_panel": DECODE,
        "widen_scales": DECODE,
        "_multiply_": EPILOGUE,
        "_quantize_": QUANTIZE,
    }
    for piece, part in pieces.items():
        if piece in function:
            return part
    return DRIVER


def split(trace: qemu_trace.Trace, marks: list[int]) -> Count:
    """Split what was executed at the loops around marked addresses."""
    around = (trace.loop_around(mark) for mark in marks if mark in trace.times)
    loops = qemu_trace.merged(loop for loop in around if loop is not None)
    parts: collections.Counter[str] = collections.Counter()
    for address, times in trace.times.items():
        inside = qemu_trace.within(address, loops)
        parts[LOOP if inside else part_of(trace.function[address])] += times
    updates = sum(times for address, times in trace.times.items() if UPDATE.match(trace.text[address]))
    return Count(parts=dict(parts), updates=updates)


def read_marks(program: Path) -> list[int]:
    """Return the addresses that ARMLLM_LOOP has marked."""
    with program.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        symbols = table.iter_symbols() if isinstance(table, SymbolTableSection) else ()
        marks = [symbol["st_value"] for symbol in symbols if symbol.name.startswith("armllm_loop.")]
    if not marks:
        raise BuildError(f"{program} has no marked loop: was it built with ARMLLM_MARK_LOOPS?")
    return marks


def count(emulator: Path, program: Path, target: str, arguments: list[object], marks: list[int]) -> Count:
    """Run the program on the target's core and split what it executes."""
    command = [emulator, "-cpu", TARGETS[target], "-d", qemu_trace.LOG, program, target, *arguments]
    environment = {**os.environ, **QEMU}
    with subprocess.Popen([str(w) for w in command], stderr=subprocess.PIPE, env=environment) as process:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            trace = qemu_trace.read(process.stderr, "count_begin", "count_end")
        except ValueError as error:
            raise BuildError(f"{program.name} {target} {' '.join(map(str, arguments))}: {error}") from error
        finally:
            process.kill()
    return split(trace, marks)


def main() -> int:
    """Parse the command line, build, count, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="kernels")
    parser.add_argument("--scheme", action="append", choices=SCHEMES, help="weights")
    parser.add_argument("--rows", action="append", type=int, metavar="N", help="tokens of a step")
    parser.add_argument("--layer", default="0.5B", choices=LAYERS, help="sizes")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="that share the work")
    parser.add_argument("--check", action="store_true", help="fail when a quarter or more is outside loops")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build here and leave it")
    options = parser.parse_args()
    emulator = qemu.find(tuple(TARGETS.values()))
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="count-") as temporary:
        program = conformance.build(
            (options.keep or Path(temporary)).resolve(),
            "-DCMAKE_CXX_FLAGS=-DARMLLM_MARK_LOOPS",
            *(f"-DARMLLM_{unused}=OFF" for unused in ("BF16", "FHM", "SVE", "SVE512")),
            arm64=True,
            program="one_call",
        )
        marks = read_marks(program)
        columns = " | ".join((*PARTS, "updates"))
        print(f"| target | weights | rows | million instructions | outside the loops | {columns} |")
        print("| --- | --- | ---: " + "| ---: " * (3 + len(PARTS)) + "|")
        for target in options.target or TARGETS:
            for scheme in options.scheme or SCHEMES:
                for rows in options.rows or (64, 512):
                    sizes = [size for matrix in LAYERS[options.layer] for size in matrix]
                    arguments = [*SCHEMES[scheme], rows, options.threads, *sizes]
                    counted = count(emulator, program, target, arguments, marks)
                    worst = max(worst, counted.outside)
                    shares = [counted.outside, *(counted.share(part) for part in PARTS)]
                    figures = " | ".join([f"{counted.total / 1e6:.1f}", *(f"{s:.1%}" for s in shares)])
                    print(f"| {target} | {scheme} | {rows} | {figures} | {counted.updates} |", flush=True)
    return 1 if options.check and worst >= MOST else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArmbuildError as error:
        print(f"count_instructions: {error}", file=sys.stderr)
        sys.exit(error.status)
