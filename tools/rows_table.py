"""Quantized products by their number of rows: what the tiles that so many rows are cut into do per cycle.

The cuts are the kernels' own, which the marked build tells by labels (csrc/kernels/matmul.h).
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from armbuild.errors import BuildError
from kernel_loops import ARMV9, CORES, Core, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LABEL = re.compile(r"\s*armllm_tiles\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.\d+:")
ROWS = range(1, 18)
N1 = ("neoverse-n1",)
# Multiply-accumulates per cycle to be reached from 2 to 16 rows: those of the loop, or per row where that is
# less: what keeps a core's share of the memory busy.
PER_ROW = {"neoverse-n1": 2.3, "neoverse-v1": 3.6, "neoverse-v2": 3.6}
AIMS = {
    "int4-g32": {"neoverse-n1": 24, "neoverse-v1": 75, "neoverse-v2": 75},
    "int4-g128": {"neoverse-n1": 27, "neoverse-v1": 95, "neoverse-v2": 95},
    "int4-channelwise": {"neoverse-n1": 30, "neoverse-v1": 113, "neoverse-v2": 113},
    "int8": {"neoverse-n1": 31, "neoverse-v1": 124, "neoverse-v2": 124},
}

# (bits, grouped, rows) -> rows of each tile
Cuts = dict[tuple[int, bool, int], tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """A target's product with one kind of weights. columns: of a panel; together: panels of a single row."""

    weights: str
    target: str
    bits: int
    length: int
    columns: int
    together: int
    cores: tuple[str, ...]

    @property
    def grouped(self) -> bool:
        return self.length >= 32

    def loop(self, rows: int) -> Loop:
        """The inner loop of a tile of so many rows."""
        return Loop(
            target=self.target,
            entry=f"w{self.bits}a8_tile",
            marker="group" if self.grouped else "channel",
            rows=rows,
            length=self.length,
            bits=self.bits,
            columns=self.columns * (self.together if rows == 1 else 1),
        )


PRODUCTS = tuple(
    Product(
        weights=weights,
        target=target,
        bits=bits,
        length=length,
        columns=columns,
        together=together,
        cores=cores,
    )
    for target, cores, kinds in (
        ("dotprod", N1, {4: (8, 4), 8: (4, 4)}),
        ("i8mm", ARMV9, {4: (4, 4), 8: (4, 2)}),
    )
    for weights, bits, length in (
        ("int4-g32", 4, 32),
        ("int4-g64", 4, 64),
        ("int4-g128", 4, 128),
        ("int4-channelwise", 4, 16),
        ("int8", 8, 16),
    )
    for columns, together in (kinds[bits],)
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table: multiply-accumulates per cycle of 1 to 17 rows."""

    weights: str
    core: str
    rates: tuple[float, ...]

    def markdown(self) -> str:
        return f"| {self.weights} | {self.core} | " + " | ".join(f"{rate:.1f}" for rate in self.rates) + " |"


def find_cuts(lines: list[str]) -> Cuts:
    """Return the rows of each tile, as a target's assembly tells them."""
    found = [[int(number) for number in match.groups()] for line in lines if (match := LABEL.match(line))]
    return {(bits, bool(grouped), rows): tuple(_digits(tiles)) for bits, grouped, rows, tiles in found}


def _digits(number: int) -> Iterator[int]:
    """Two at a time, the last first."""
    while number:
        yield number % 100
        number //= 100


def measure(cuts: dict[str, Cuts], cycles_of: Callable[[Loop, Core], float]) -> list[Line]:
    """Return the table. ``cycles_of`` gives a loop's cycles for each element of its length."""
    lines = []
    for product, core in _kinds():
        rates = []
        for rows in ROWS:
            cycles = sum(cycles_of(loop, core) / loop.columns for loop in _tiles(cuts, product, rows))
            rates.append(rows / cycles)
        lines.append(Line(weights=product.weights, core=core.name, rates=tuple(rates)))
    return lines


def loops(cuts: dict[str, Cuts]) -> Iterator[tuple[Loop, Core]]:
    """What ``measure`` will ask the cycles of, some of it several times."""
    for product, core in _kinds():
        for rows in ROWS:
            for loop in _tiles(cuts, product, rows):
                yield loop, core


def _kinds() -> Iterator[tuple[Product, Core]]:
    return ((product, core) for product in PRODUCTS for core in CORES if core.name in product.cores)


def _tiles(cuts: dict[str, Cuts], product: Product, rows: int) -> list[Loop]:
    """The loops of tiles that so many rows are cut into. Raises BuildError where its target tells none."""
    tiles = cuts[product.target].get((product.bits, product.grouped, rows))
    if tiles is None:
        raise BuildError(f"target {product.target} does not tell how it cuts {rows} rows")
    # a single row is told as its pair where rows come in pairs, and has a loop of its own
    return [product.loop(1)] if rows == 1 else [product.loop(tile) for tile in tiles]


def table(lines: list[Line]) -> str:
    """Return the lines as Markdown."""
    head = f"| weights | core | {' | '.join(map(str, ROWS))} |"
    return (
        "\n".join([head, "| --- | --- |" + " ---: |" * len(ROWS), *(line.markdown() for line in lines)])
        + "\n"
    )


def committed(part: str) -> dict[tuple[str, str], list[float]]:
    """Return (weights, core) -> rates of the part of a page that `table` wrote."""
    result = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 2 + len(ROWS) and cells[1] in Loop.cores:
            result[cells[0], cells[1]] = [float(cell) for cell in cells[2:]]
    return result


def losses(lines: list[Line], before: dict[tuple[str, str], list[float]], loss: float) -> list[str]:
    """Return a sentence per line that lost more than ``loss`` times, misses its aim, is new, or is gone."""
    complaints = []
    for line in lines:
        name = f"{line.weights} on {line.core}"
        old = before.pop((line.weights, line.core), None)
        if old is None:
            complaints.append(f"{name} is not in the table by rows")
            continue
        for rows, now, then in zip(ROWS, line.rates, old, strict=True):
            if now * loss < then:
                complaints.append(f"{name}, {rows} rows: {now:.1f} MAC per cycle now, {then} in the table")
        complaints += misses(line)
    return complaints + [
        f"{weights} on {core} is in the table by rows, but no longer there" for weights, core in before
    ]


def misses(line: Line) -> list[str]:
    """Return a sentence per number of rows, from 2 to 16, that is below what it should reach."""
    aim = AIMS.get(line.weights, {}).get(line.core)
    if aim is None:
        return []
    return [
        f"{line.weights} on {line.core}, {rows} rows: {rate:.2f} MAC per cycle, wanted {wanted:.1f}"
        for rows, rate in zip(ROWS, line.rates, strict=True)
        if 2 <= rows <= 16 and rate < (wanted := min(aim, PER_ROW[line.core] * rows))
    ]
