"""Count the cycles of the kernels' inner loops with llvm-mca and compare them with the committed table.

    tools/cycles.py              print the table
    tools/cycles.py --write      write it to docs/reference/cycles.md
    tools/cycles.py --check      fail when a loop lost more than 5% against docs/reference/cycles.md, or a
                                 product is below what it should reach with 2 to 16 rows (rows_table), or
                                 with its data in caches (cache_model)

The targets are compiled by zig with the flags of the build; the loops are those that ARMLLM_LOOP names in
csrc. Two dispatch widths are tried, llvm-mca's and the core's, and the slower one counts. Exit status: 0
done, 1 the check failed, 3 a tool is missing, 4 a build failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cache_model
import conformance
import rows_table
from armbuild.errors import ArmbuildError, BuildError, MissingError
from kernel_loops import CORES, LOOPS, ONE_ROW, ONE_ROW_SHARE, ONE_ROW_WEIGHTS, Core, Loop
from marked_loops import crack, find_loops

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "cycles.md"
CACHES_START, CACHES_END = "<!-- caches: written by tools/cycles.py -->", "<!-- end of caches -->"
START, END = "<!-- cycles: written by tools/cycles.py -->", "<!-- end of cycles -->"
ROWS_START, ROWS_END = "<!-- rows: written by tools/cycles.py -->", "<!-- end of rows -->"
LLVM_MCA = ("llvm-mca-19", "llvm-mca")
LOSS = 1.05
WEIGHTS = {"dense", "panels", "shrink", "expand"}  # loops of few rows that wait for weights
ITERATIONS = (50, 150)  # what is between them is the loop at its steady pace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. Better is lower for cycles."""

    title: str
    target: str
    core: str
    cycles: float
    rate: str
    peak: str
    limit: str
    loads: float = 0
    """Attention of one row: bytes of KV beside what loads can do. 0: another loop."""
    weights: float = 0
    """A product of one row: bytes of weights per cycle. 0: another loop."""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.title, self.target, self.core)

    def markdown(self) -> str:
        cells = (self.title, self.target, self.core, f"{self.cycles:.2f}", self.rate, self.peak, self.limit)
        return "| " + " | ".join(cells) + " |"


def compile_targets(folder: Path, targets: set[str]) -> dict[str, list[str]]:
    """Return the assembly of each target, compiled as the build does it, with its loops marked."""
    configure = conformance.configure(folder, arm64=True)
    done = subprocess.run(
        [*configure, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"CMake failed: {done.stderr.strip().splitlines()[-1]}")
    commands = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    assembly = {}
    for command in commands:
        name = Path(command["file"]).stem
        if "targets/" not in command["file"] or name not in targets:
            continue
        output = folder / f"{name}.s"
        compiler, *arguments = shlex.split(command["command"])
        arguments[arguments.index("-o") + 1] = str(output)
        arguments.remove("-c")
        marked = [compiler, "-DARMLLM_MARK_LOOPS", "-Wno-unused-command-line-argument", "-S", *arguments]
        done = subprocess.run(marked, cwd=command["directory"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{command['file']} did not compile: {done.stderr.strip()[:300]}")
        assembly[name] = output.read_text(encoding="utf-8").splitlines()
    return assembly


def find_entry(loops: dict[tuple[str, str, int], list[str]], loop: Loop) -> list[str]:
    """Return the lines of a loop that the report wants. Raises BuildError when the code has no such loop."""
    name = re.compile(rf"\d+{re.escape(loop.entry)}(?:E|$)|\d+{re.escape(loop.entry)}RK")
    found = [
        body
        for (function, marker, n), body in loops.items()
        if name.search(function) and marker == loop.marker and loop.mark in {0, n}
    ]
    if not found:
        raise BuildError(
            f"no loop {loop.marker} in {loop.entry} of target {loop.target}: was its mark moved?"
        )
    return max(found, key=len)


def macs(body: list[str], core: Core) -> tuple[int, int]:
    """Return an iteration's multiply-accumulates and the core's peak of the instruction doing them."""
    count, peak = 0, core.fmla
    for line in body:
        operation = line.split()[0]
        if operation == "fmla" and re.search(r"\bz\d+\.s", line):
            count += core.sve_bits // 32
        elif (operation in {"fmla", "fmls"} and ".4s" in line) or operation in {"fmlal", "fmlal2"}:
            count += 4
        elif operation in {"smull", "smull2", "smlal", "smlal2"}:
            count += 8
        elif operation == "sdot":
            count, peak = count + 16, 4 * core.fmla
        elif operation == "smmla":
            count, peak = count + 32, 8 * core.fmla
        elif operation == "bfdot":
            count, peak = count + 8, 2 * core.fmla
        elif operation == "bfmmla":
            count, peak = count + 16, 4 * core.fmla
    return count, peak


def find_llvm_mca() -> str:
    """Its path; raises MissingError."""
    tool = next((path for name in LLVM_MCA if (path := shutil.which(name))), None)
    if tool is None:
        raise MissingError("llvm-mca is missing: apt-get install llvm-19")
    return tool


def simulate(tool: str, bodies: list[list[str]], core: Core) -> list[tuple[float, str]]:
    """Return of each body its cycles per iteration and what limits them."""
    texts = [
        "\n".join(crack(line) for line in body if not line.strip().startswith(("//", "."))) for body in bodies
    ]
    unknown = list(dict.fromkeys(texts))
    worst = dict.fromkeys(unknown, (0.0, ""))
    for width in ((), (f"-dispatch={core.dispatch}",)):
        few, many = (run_llvm_mca(tool, unknown, core, (f"-iterations={n}", *width)) for n in ITERATIONS)
        for text, short, long in zip(unknown, few["CodeRegions"], many["CodeRegions"], strict=True):
            cycles = float(long["SummaryView"]["TotalCycles"] - short["SummaryView"]["TotalCycles"])
            cycles /= ITERATIONS[1] - ITERATIONS[0]
            if cycles > worst[text][0]:
                limit = limiting(long, many["TargetInfo"]["Resources"], cycles, core)
                worst[text] = (cycles, limit)
    return [worst[text] for text in texts]


def run_llvm_mca(tool: str, texts: list[str], core: Core, options: tuple[str, ...]) -> dict[str, Any]:
    """Return llvm-mca's report on pieces of code, a region for each. Raises BuildError when it fails."""
    regions = "".join(
        f"# LLVM-MCA-BEGIN {number}\n{text}\n# LLVM-MCA-END {number}\n" for number, text in enumerate(texts)
    )
    command = [tool, "-mtriple=aarch64", f"-mcpu={core.name}", "--json", *options]
    done = subprocess.run(command, input=regions, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"llvm-mca on {core.name}: {done.stderr.strip().splitlines()[0]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


UNITS = {"V": "vector", "L": "load", "S": "scalar", "M": "scalar", "B": "branch", "D": "store", "I": "scalar",
         "F": "vector", "E": "scalar"}  # fmt: skip


def limiting(region: dict[str, Any], names: list[str], cycles: float, core: Core) -> str:
    """Return the busiest kind of unit and how busy it is, or latency when none is."""
    busy: dict[str, float] = {}
    for entry in region["ResourcePressureView"]["ResourcePressureInfo"]:
        if entry["InstructionIndex"] == len(region["Instructions"]):
            name = names[entry["ResourceIndex"]]
            kind = re.sub(r"\.\d+$", "", name)
            kind = kind.partition("Unit")[2] or kind.removeprefix("A64FXIP")
            busy.setdefault(kind, 0.0)
            busy[kind] = max(busy[kind], entry["ResourceUsage"])
    if not busy or cycles == 0:
        return "latency"
    kind, use = max(busy.items(), key=lambda item: item[1])
    share = min(use / cycles, 1)
    unit = UNITS.get(kind[:1], kind)
    instructions = len(region["Instructions"])
    if share < 0.9 and instructions / cycles > 0.9 * core.dispatch:
        return "dispatch"
    return f"{unit} {share:.0%}" if share >= 0.9 else f"latency ({unit} {share:.0%})"


Tables = tuple[list[Row], list[rows_table.Line], list[cache_model.Line]]


def measure(tool: str, assembly: dict[str, list[str]]) -> Tables:
    """Return the rows of the tables: of loops, by rows of a product, with caches."""
    marked = {target: find_loops(lines) for target, lines in assembly.items()}
    cuts = {target: rows_table.find_cuts(lines) for target, lines in assembly.items()}
    of_core = {core: [loop for loop in LOOPS if core.name in loop.cores] for core in CORES}
    bodies = {loop: find_entry(marked[loop.target], loop) for loop in LOOPS}
    for loop, core in rows_table.loops(cuts):
        bodies[loop] = find_entry(marked[loop.target], loop)
        of_core[core].append(loop)
    simulated = {
        (loop, core): result
        for core, loops in of_core.items()
        for loop, result in zip(loops, simulate(tool, [bodies[loop] for loop in loops], core), strict=True)
    }

    def cycles_of(loop: Loop, core: Core) -> float:
        return simulated[loop, core][0] / (iterations(bodies[loop], loop) * loop.length)

    rows = [
        row(loop, core, bodies[loop], *simulated[loop, core])
        for loop in LOOPS
        for core in CORES
        if core.name in loop.cores
    ]

    def iteration_of(loop: Loop, core: Core) -> tuple[float, int, int]:
        body = bodies[loop]
        return simulated[loop, core][0], iterations(body, loop), cache_model.loads_of(body)

    blocks = {target: cache_model.find_blocks(lines) for target, lines in assembly.items()}
    return rows, rows_table.measure(cuts, cycles_of), cache_model.measure(blocks, iteration_of)


def iterations(body: list[str], loop: Loop) -> int:
    """Return how many times the mark of a product's loop stands in one turn."""
    return int(body[-1].split()[-1]) // loop.mark


def row(loop: Loop, core: Core, body: list[str], cycles: float, limit: str) -> Row:
    """Put figures to a loop's cycles: multiply-accumulates or bytes of KV for attention, else per element."""
    if loop.length:
        rate = iterations(body, loop) * loop.rows * loop.length * loop.columns / cycles
        figures = f"{rate:.1f} MAC"
        weights = rate * loop.bits / 8 if loop.rows == 1 else 0
        if weights:
            figures += f", {weights:.1f} bytes of weights"
        peak = core.fmla * (8 if loop.target == "i8mm" else 4)
        return Row(
            title=loop.title, target=loop.target, core=core.name, cycles=cycles, rate=figures,
            peak=f"{rate / peak:.0%}", limit=limit, weights=weights,
        )  # fmt: skip
    if loop.rows:
        count, peak = macs(body, core)
        rate = count / loop.digits / cycles
        size: float = 1 if loop.entry.startswith("int8") else 4 if loop.entry.endswith("f32") else 2
        figures = f"{rate:.1f} MAC"
        loads = weights = 0.0
        if loop.rows <= 2:
            read = "weights" if loop.marker in WEIGHTS else "KV"
            size *= rate / loop.rows
            figures += f", {size:.1f} bytes of {read}"
            if read == "weights" and loop.rows == 1:
                weights = size
            if read == "KV":
                loads = size / core.loads(loop.target)
                figures += f" ({loads:.0%} of loads)"
        return Row(
            title=loop.title, target=loop.target, core=core.name, cycles=cycles, rate=figures,
            peak=f"{rate * loop.digits / peak:.0%}", limit=limit, loads=loads, weights=weights,
        )  # fmt: skip
    vectors = int(body[-1].split()[-1])
    lanes = core.sve_bits // 32 if loop.target == "sve" else 4
    return Row(
        title=loop.title, target=loop.target, core=core.name, cycles=cycles,
        rate=f"{cycles / (vectors * lanes):.3f} per element", peak="", limit=limit,
    )  # fmt: skip


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| loop | target | core | cycles per iteration | per cycle, or cycles | of peak | limit |",
        "| --- | --- | --- | ---: | --- | ---: | --- |",
    ]
    return "\n".join(lines + [entry.markdown() for entry in rows]) + "\n"


def committed(page: str) -> dict[tuple[str, str, str], str]:
    """Return key -> the figure of each row of the page's table."""
    result = {}
    for line in between(page, START, END).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 7 and not cells[0].startswith(("loop", "---")):
            result[cells[0], cells[1], cells[2]] = cells[4]
    return result


def between(page: str, start: str, end: str) -> str:
    """Return what stands between two marks. Raises BuildError where they are missing."""
    if start not in page or end not in page:
        raise BuildError(f"{PAGE}: no table between {start} and {end}; make it with --write")
    return page.partition(start)[2].partition(end)[0]


def cost(figure: str) -> float:
    """Return cycles per unit of work from "15.9 MAC, …" or "0.850 per element"."""
    number = float(figure.split(maxsplit=1)[0])
    return 1 / number if "MAC" in figure else number


def losses(rows: list[Row], before: dict[tuple[str, str, str], str]) -> list[str]:
    """Return a sentence per loop that lost more than 5%, is new, or is gone."""
    complaints = []
    for entry in rows:
        old = before.pop(entry.key, None)
        name = f"{entry.title} ({entry.target}, {entry.core})"
        if old is None:
            complaints.append(f"{name} is not in the table")
        elif cost(entry.rate) > LOSS * cost(old):
            complaints.append(f"{name}: {entry.rate} now, {old} in the table")
    complaints += [
        f"{title} ({target}, {core}) is in the table, but no longer there" for title, target, core in before
    ]
    return complaints


def slow_rows(rows: list[Row]) -> list[str]:
    """Return a sentence per loop of one row that leaves too many loads unused, or reads too few weights."""
    few = [
        f"{entry.title} ({entry.target}, {entry.core}): {entry.weights:.1f} bytes of weights per cycle, not "
        f"{ONE_ROW_WEIGHTS[entry.target]:.0f}"
        for entry in rows
        if 0 < entry.weights < ONE_ROW_WEIGHTS.get(entry.target, 0)
    ]
    return few + [
        f"{entry.title} ({entry.target}, {entry.core}): {entry.loads:.0%} of what loads can do, not "
        f"{ONE_ROW_SHARE:.0%}"
        for entry in rows
        for target, function, cores in ONE_ROW
        if entry.target == target and entry.core in cores and entry.title.startswith(f"{function}:")
        if 0 < entry.loads < ONE_ROW_SHARE
    ]


def main() -> int:
    """Parse the command line, compile, count, compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the table to docs/reference/cycles.md")
    parser.add_argument("--check", action="store_true", help="compare with docs/reference/cycles.md")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the assembly in DIR")
    options = parser.parse_args()
    tool = find_llvm_mca()
    page = PAGE.read_text(encoding="utf-8")
    before = committed(page) if options.check or options.write else {}
    by_rows = rows_table.committed(between(page, ROWS_START, ROWS_END)) if before else {}
    caches = cache_model.committed(between(page, CACHES_START, CACHES_END)) if before else {}
    with tempfile.TemporaryDirectory(prefix="cycles-") as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rows, lines, tiles = measure(tool, compile_targets(folder, {loop.target for loop in LOOPS}))
    if options.write:
        for start, end, text in (
            (START, END, table(rows)),
            (ROWS_START, ROWS_END, rows_table.table(lines)),
            (CACHES_START, CACHES_END, cache_model.table(tiles)),
        ):
            head, _, rest = page.partition(start)
            page = f"{head}{start}\n\n{text}\n{end}{rest.partition(end)[2]}"
        PAGE.write_text(page, encoding="utf-8")
    if not options.check:
        print(table(rows), rows_table.table(lines), cache_model.table(tiles), sep="\n", end="")
        return 0
    complaints = losses(rows, before) + slow_rows(rows) + rows_table.losses(lines, by_rows, LOSS)
    complaints += cache_model.losses(tiles, caches, LOSS)
    for line in complaints:
        print(line)
    print(f"{len(rows)} loops, {len(complaints)} worse than the table says")
    return 1 if complaints else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ArmbuildError as error:
        print(f"cycles: {error}", file=sys.stderr)
        sys.exit(error.status)
