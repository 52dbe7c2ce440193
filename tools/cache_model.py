"""What the tiles of products do when their data comes from the first-level cache, or from behind it.

llvm-mca models no caches. Here the loads of a tile go, line by line, through a model of the first-level
cache: its size, its ways, the least recently used line leaves first. Lines that are missing come from the
second-level cache, so many bytes in a cycle. The tile goes from panel to panel, and from block to block of
features, as the kernels do: their marked build tells the blocks by labels (ARMLLM_BLOCK in
csrc/targets/target.h).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING

from kernel_loops import ARMV9, CORES, Core, Loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LABEL = re.compile(r"\s*armllm_block\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.\d+:")
FEATURES = (2048, 4096, 8192)
"""Input features of a product. Rows of bf16 are then 4096, 8192 and 16384 bytes apart."""
LOAD = {"ldr", "ldur", "ld1", "ldp", "ldnp"}
STEP = 16  # features that are read of one stream before the next one's
N1 = ("neoverse-n1",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """A first-level cache for data and what is behind it."""

    size: int = 64 * 1024
    ways: int = 4
    line: int = 64
    behind: float = 32.0
    """Bytes per cycle from the second-level cache. Arm measures 73.4 GB/s on Graviton2 at 2.5 GHz, 29 bytes
    per cycle (https://learn.arm.com/learning-paths/servers-and-cloud-computing/memory-subsystem)."""


CACHE = Cache()
"""Of Neoverse-N1, N2, V1 and V2 alike (their technical reference manuals)."""
LOADS = {"neoverse-n1": 2, "neoverse-n2": 2, "neoverse-v1": 3, "neoverse-v2": 3}
"""Loads of 16 bytes that a core starts in a cycle (software optimization guides)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """How a kernel blocks features. features 0: it does not; from: bytes of activations that need it."""

    features: int = 0
    panels: int = 0
    above: int = 0

    def of(self, features: int, bytes_: float) -> tuple[int, int]:
        """Return the features of a block and the panels that take it one after the other."""
        if self.features == 0 or features <= self.features or bytes_ <= self.above:
            return features, 1
        return self.features, self.panels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stream:
    """Rows of memory that a tile reads side by side."""

    bytes: float
    """Of one row for each feature."""
    rows: int = 1
    """As far apart as a row of all features is long."""
    stays: bool = False
    """The same for each panel: activations."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tile:
    """A register tile, the streams that it reads, and by which number of bits its block is told."""

    loop: Loop
    chunk: int
    """Features between two marks of its loop."""
    bits: int
    streams: tuple[Stream, ...]
    least: float = 0
    """The share of its loop's pace to be kept at every number of features, 0 for none."""


def _quantized(bits: int, marker: str, length: int, rows: int, least: float) -> Tile:
    grouped = marker == "group"
    loop = Loop(
        target="i8mm", entry=f"w{bits}a8_tile", marker=marker, rows=rows, length=length, bits=bits, columns=4,
        cores=ARMV9,
    )  # fmt: skip
    streams = [Stream(bytes=rows, stays=True), Stream(bytes=4 * bits / 8)]
    if grouped:
        streams.append(Stream(bytes=16 / length))  # scales
    if grouped and bits == 4:
        streams.append(Stream(bytes=8 * rows / length, stays=True))  # what sums start at
    return Tile(loop=loop, chunk=length, bits=bits, streams=tuple(streams), least=least)


TILES = (
    _quantized(8, "channel", 16, 16, 0.95),
    _quantized(4, "channel", 16, 16, 0.95),
    *(_quantized(bits, "group", length, 12, 0.95) for bits in (8, 4) for length in (32, 128)),
    Tile(
        loop=Loop(target="bf16", entry="panel_multiply_bf16", marker="panels", rows=6, cores=ARMV9),
        chunk=8,
        bits=16,
        streams=(Stream(bytes=12, stays=True), Stream(bytes=32)),
        least=0.95,
    ),
    Tile(
        loop=Loop(target="bf16", entry="dense_multiply_bf16", marker="dense", rows=8, cores=ARMV9),
        chunk=8,
        bits=0,
        streams=(Stream(bytes=16, stays=True), Stream(bytes=2, rows=8)),
    ),
    *(
        Tile(
            loop=Loop(target="neon", entry=f"panel_multiply_{storage}", marker="panels", rows=4, cores=N1),
            chunk=4,
            bits=0,
            streams=(Stream(bytes=4, rows=4, stays=True), Stream(bytes=16 * size)),
        )
        for storage, size in (("f32", 4), ("bf16", 2))
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. pace: cycles of the loop alone by those with the caches."""

    title: str
    target: str
    core: str
    features: int
    loads: float
    missing: float
    pace: float
    least: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.title, self.target, self.core, str(self.features))

    def markdown(self) -> str:
        loads = f"{self.loads:.1f} of {LOADS[self.core]}"
        return f"| {' | '.join(self.key)} | {loads} | {self.missing:.1f} | {self.pace:.0%} |"


def find_blocks(lines: list[str]) -> dict[int, Block]:
    """Return bits of a weight -> how its features are blocked, as a target's assembly tells it."""
    found = [[int(number) for number in match.groups()] for line in lines if (match := LABEL.match(line))]
    return {
        bits: Block(features=features, panels=panels, above=above) for bits, features, panels, above in found
    }


def _lines_read(
    streams: tuple[Stream, ...], features: int, length: int, together: int, line: int
) -> Iterator[tuple[int, int]]:
    """Yield the lines in the order in which a tile reads them, with their round of panels."""
    for turn in range(3):
        for begin in range(0, features, length):
            for panel in range(together):
                for first in range(begin, min(begin + length, features), STEP):
                    for number, stream in enumerate(streams):
                        for row in range(stream.rows):
                            moved = 0 if stream.stays else turn * together + panel
                            at = (number << 40) + int(
                                (moved * stream.rows + row) * features * stream.bytes + first * stream.bytes
                            )
                            last = at + max(1, int(STEP * stream.bytes)) - 1
                            for number_of_line in range(at // line, last // line + 1):
                                yield turn, number_of_line


@functools.cache
def missing_bytes(streams: tuple[Stream, ...], features: int, block: Block, cache: Cache = CACHE) -> float:
    """Return the bytes that come from behind the cache per feature and panel, once the tile has begun."""
    sets: list[dict[int, None]] = [{} for _ in range(cache.size // cache.line // cache.ways)]
    missed = 0
    stays = sum(stream.bytes * stream.rows for stream in streams if stream.stays)
    length, together = block.of(features, stays * features)
    for turn, number in _lines_read(streams, features, length, together, cache.line):
        ways = sets[number % len(sets)]
        if number in ways:
            del ways[number]
        else:
            missed += turn > 0
            if len(ways) == cache.ways:
                del ways[next(iter(ways))]
        ways[number] = None
    return missed * cache.line / (2 * together * features)


def loads_of(body: list[str]) -> int:
    """Return how many registers an iteration loads, each of which takes a load of its own."""
    loads = (parts[1] for line in body if (parts := line.split(maxsplit=1))[0] in LOAD)
    return sum(len(re.findall(r"\b[bhsdqvwx]\d+", operands.partition("[")[0])) for operands in loads)


def measure(
    blocks: dict[str, dict[int, Block]], simulated: Callable[[Loop, Core], tuple[float, int, int]]
) -> list[Line]:
    """Return the table. ``simulated`` gives cycles, marks and loads of an iteration of a loop."""
    lines = []
    for tile in TILES:
        block = blocks[tile.loop.target].get(tile.bits, Block())
        for core in (core for core in CORES if core.name in tile.loop.cores):
            cycles, marks, loads = simulated(tile.loop, core)
            step = marks * tile.chunk
            for features in FEATURES:
                missing = missing_bytes(tile.streams, features, block)
                behind = missing * step / CACHE.behind
                lines.append(
                    Line(
                        title=tile.loop.title,
                        target=tile.loop.target,
                        core=core.name,
                        features=features,
                        loads=loads / cycles,
                        missing=missing * step / max(cycles, behind),
                        pace=cycles / max(cycles, behind),
                        least=tile.least,
                    )
                )
    return lines


def table(lines: list[Line]) -> str:
    """Return the lines as Markdown."""
    head = [
        "| tile | target | core | features | loads per cycle | bytes per cycle from L2 | pace |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join(head + [line.markdown() for line in lines]) + "\n"


def committed(part: str) -> dict[tuple[str, str, str, str], float]:
    """Return the pace of each line of the part of a page that `table` wrote."""
    result = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 7 and cells[3].isdigit():
            result[cells[0], cells[1], cells[2], cells[3]] = float(cells[6].rstrip("%")) / 100
    return result


def losses(lines: list[Line], before: dict[tuple[str, str, str, str], float], loss: float) -> list[str]:
    """Return a sentence per line that lost over ``loss`` times, is below its least, is new, or is gone."""
    complaints = []
    for line in lines:
        name = f"{line.title} ({line.target}, {line.core}) with {line.features} features"
        old = before.pop(line.key, None)
        if old is None:
            complaints.append(f"{name} is not in the table of caches")
        elif line.pace * loss < old:
            complaints.append(f"{name}: {line.pace:.0%} of its loop's pace now, {old:.0%} in the table")
        if line.pace < line.least:
            complaints.append(f"{name} keeps {line.pace:.0%} of its loop's pace, wanted {line.least:.0%}")
    return complaints + [f"{' '.join(key)} is in the table of caches, but no longer there" for key in before]
