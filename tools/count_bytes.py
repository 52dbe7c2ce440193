"""Count the bytes that the ops of a decode step bring from memory, against weights and KV cache.

    tools/count_bytes.py                          all targets and weights, 1 and 4 sequences
    tools/count_bytes.py --target i8mm --form int4 --sequences 1
    tools/count_bytes.py --check                  fail where a step reads more than 1.05 times

The step is that of a Llama of 31 million weights with 1024 cached tokens per sequence
(tests/csrc/one_step.cpp), on one thread. A plugin of QEMU (tools/count_bytes.c) sees every load and store,
and counts the lines that a second-level cache of 1 MiB misses. Exit status: 0 done, 1 the check failed, 3 a
tool is missing, 4 a build or a run failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import conformance
from armbuild.errors import ArmbuildError, BuildError, MissingError
from armbuild.host import cache
from armbuild.target import debian
from armbuild.target.qemu import DEBIAN_ARCHITECTURES

SOURCE = Path(__file__).with_suffix(".c")
SUITE = "bookworm"
"""Its QEMU 7.2 is the last of Debian's that loads plugins: later ones are linked statically."""
CORES = {"dotprod": "neoverse-n1", "i8mm": "max,sve=off"}
"""The last target to choose from, and a core of QEMU 7.2 that has it. i8mm chooses the bf16 kernels too."""
FORMS = {
    "bf16": ("panels", 0),
    "int8": ("int8", 0),
    "int4-g32": ("int4", 32),
    "int4-g32-bf16": ("int4", "32-bf16"),
    "int4-g128": ("int4", 128),
}
"""What the program calls them. Scales are float32, or bfloat16 where the name says so."""
CONTEXT = 1024
MOST = 1.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Count:
    """Bytes of an op: what it must read of weights and KV cache, and what came from memory."""

    op: str
    least: int
    weights: int
    cache: int
    others: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.others


def find_emulator() -> list[str]:
    """Return the command of a QEMU that loads plugins, from the Debian archive, run by its own loader.

    Raises MissingError.
    """
    architecture = DEBIAN_ARCHITECTURES.get(platform.machine())
    if architecture is None:
        raise MissingError(f"Debian has no QEMU for {platform.machine()}")

    def make(folder: Path) -> None:
        debian.install(("qemu-user",), folder, suite=SUITE, architecture=architecture)

    folder = cache.fill(debian.cache_folder("qemu-plugins", f"{SUITE}-{architecture}", None), make)
    loaders = sorted(folder.glob("usr/lib/*/ld-linux-*.so.*"))
    if not loaders:
        raise MissingError(f"{folder} has no loader of programs: armbuild cache clear, and try again")
    return [str(loaders[0]), "--library-path", str(loaders[0].parent), str(folder / "usr/bin/qemu-aarch64")]


def build_plugin(folder: Path) -> Path:
    """Compile the plugin for this machine. Raises BuildError."""
    plugin = folder / "count_bytes.so"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-shared",
        "-fPIC",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    done = subprocess.run([*command, "-o", plugin, SOURCE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{SOURCE.name} did not compile: {done.stderr.strip()[:300]}")
    return plugin


def address_of(program: Path, symbol: str) -> int:
    """Return where a static program keeps a variable. Raises BuildError where it has none of that name."""
    with program.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        if isinstance(table, SymbolTableSection) and (found := table.get_symbol_by_name(symbol)):
            return int(found[0]["st_value"])
    raise BuildError(f"{program} has no {symbol}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counter:
    """An emulator with its plugin, and the program whose ops are counted."""

    emulator: list[str]
    plugin: Path
    program: Path

    def count(self, target: str, form: str, sequences: int, context: int = CONTEXT) -> list[Count]:
        """Run a step and return what its ops read. Raises BuildError when it fails."""
        arguments = [target, *map(str, FORMS[form]), str(sequences), str(context)]
        with tempfile.TemporaryDirectory(prefix="count-") as folder:
            file = Path(folder, "counted")
            ops = address_of(self.program, "count_ops")
            options = ["-cpu", CORES[target], "-plugin", f"{self.plugin},ops={ops:#x},into={file}"]
            command = [*self.emulator, *options, str(self.program), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0 or not file.is_file():
                reason = (done.stderr.strip() or f"status {done.returncode}, no count").splitlines()[-1]
                raise BuildError(f"{self.program.name} {' '.join(arguments)}: {reason}")
            return combine(done.stdout, file.read_text(encoding="utf-8"))


def combine(least: str, missed: str) -> list[Count]:
    """Put what the program says its ops must read beside what the plugin counted."""
    misses = {int(op): [int(n) for n in bytes_] for op, *bytes_ in map(str.split, missed.splitlines())}
    counts = []
    for number, line in enumerate(least.splitlines(), start=1):
        op, bytes_ = line.split()
        weights, kv, others = misses[number]
        counts.append(Count(op=op, least=int(bytes_), weights=weights, cache=kv, others=others))
    return counts


def make_counter(folder: Path) -> Counter:
    """Build what is needed in ``folder``. Raises BuildError, MissingError."""
    emulator = find_emulator()
    program = conformance.build(folder, arm64=True, program="one_step")
    return Counter(emulator=emulator, plugin=build_plugin(folder), program=program)


def read_times(counts: list[Count]) -> float:
    """How often a step brings its weights and KV cache from memory, all other bytes counted in."""
    return sum(count.total for count in counts) / sum(count.least for count in counts)


def main() -> int:
    """Parse the command line, build, count, print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", action="append", choices=CORES, help="kernels")
    parser.add_argument("--form", action="append", choices=FORMS, help="weights")
    parser.add_argument("--sequences", action="append", type=int, metavar="N", help="tokens of a step")
    parser.add_argument("--check", action="store_true", help=f"fail above {MOST}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build here and leave it")
    options = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="count-") as temporary:
        counter = make_counter((options.keep or Path(temporary)).resolve())
        print("| target | weights | sequences | op | to read, MB | weights | KV cache | others | times |")
        print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        for target in options.target or CORES:
            for form in options.form or FORMS:
                for sequences in options.sequences or (1, 4):
                    counts = counter.count(target, form, sequences)
                    worst = max(worst, read_times(counts))
                    print_rows(f"| {target} | {form} | {sequences} |", counts)
    return 1 if options.check and worst > MOST else 0


def print_rows(head: str, counts: list[Count]) -> None:
    """Print a row per op and one of all."""
    whole = {
        field: sum(getattr(count, field) for count in counts)
        for field in ("least", "weights", "cache", "others")
    }
    for count in [*counts, Count(op="all", **whole)]:
        figures = (count.least, count.weights, count.cache, count.others)
        times = f"{count.total / count.least:.3f}" if count.least else ""
        print(head, count.op, "|", " | ".join(f"{n / 1e6:.3f}" for n in figures), f"| {times} |", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArmbuildError as error:
        print(f"count_bytes: {error}", file=sys.stderr)
        sys.exit(error.status)
