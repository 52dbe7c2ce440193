"""What the tiles of products do when their data comes from a core's two caches, or from behind them.

llvm-mca models no caches. Here the loads of a tile go, line by line, through a model of the first-level
cache: its size, its ways, the least recently used line leaves first. Lines that are missing come from the
second-level cache, so many bytes in a cycle. The tile goes from panel to panel, and from block to block of
features, as the kernels do: their marked build tells the blocks by labels (ARMLLM_BLOCK in
csrc/targets/target.h).

The second-level cache sees the items that a thread takes of a prompt's product (csrc/product.h): its model
has whole tiles and panels instead of lines. What is missing there comes from the cache that all cores share.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from armbuild.errors import BuildError
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
SECOND_SIZE = 1024 * 1024
"""Of Graviton2 and 3, Altra, Cobalt 100 and Grace. Graviton4 has twice as much."""
SECOND_BEHIND = {"neoverse-n1": 14.0, "neoverse-n2": 14.0, "neoverse-v1": 14.0, "neoverse-v2": 27.0}
"""Bytes per cycle from the shared cache. On the page above Arm measures 35.9 GB/s on Graviton2, 14 bytes per
cycle, and 78.0 on Graviton4 at 2.8 GHz, 27. N2 and V1 are not measured there and get the lower figure."""
PROMPT = 512
"""Tokens of a product, the most that a step takes of prompts beside others."""
OUTPUTS = 4096
"""Columns of a product: the fewest of Llama-3-8B's large ones, so the fewest panels for a thread."""
THREADS = 64
PRODUCT = Path(__file__).resolve().parent.parent / "csrc" / "product.h"
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
    columns: int
    """Of a panel."""
    streams: tuple[Stream, ...]
    least: float = 0
    """The share of its loop's pace to be kept at every number of features, 0 for none."""
    packed: float = 0
    """Bytes of a panel for each feature before a thread decodes it for an item's tiles. 0: it does not."""

    @property
    def title(self) -> str:
        return f"{self.loop.title}, decoded int4" if self.packed else self.loop.title

    def bytes(self, *, stays: bool) -> float:
        """Of activations of a tile, or of a panel, for each feature."""
        return sum(stream.bytes * stream.rows for stream in self.streams if stream.stays == stays)


def _quantized(bits: int, marker: str, length: int, rows: int, *, decoded: bool = False) -> Tile:
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
    return Tile(
        loop=loop, chunk=length, bits=bits, columns=4, streams=tuple(streams),
        least=1.0 if decoded else 0.95, packed=2 if decoded else 0,
    )  # fmt: skip


TILES = (
    _quantized(8, "channel", 16, 16),
    _quantized(4, "channel", 16, 16),
    *(_quantized(bits, "group", length, 12) for bits in (8, 4) for length in (32, 128)),
    *(_quantized(8, "group", length, 12, decoded=True) for length in (32, 128)),
    Tile(
        loop=Loop(target="bf16", entry="panel_multiply_bf16", marker="panels", rows=6, cores=ARMV9),
        chunk=8,
        bits=16,
        columns=16,
        streams=(Stream(bytes=12, stays=True), Stream(bytes=32)),
        least=0.95,
    ),
    Tile(
        loop=Loop(target="bf16", entry="dense_multiply_bf16", marker="dense", rows=8, cores=ARMV9),
        chunk=8,
        bits=0,
        columns=8,
        streams=(Stream(bytes=16, stays=True), Stream(bytes=2, rows=8)),
    ),
    *(
        Tile(
            loop=Loop(target="neon", entry=f"panel_multiply_{storage}", marker="panels", rows=4, cores=N1),
            chunk=4,
            bits=0,
            columns=16,
            streams=(Stream(bytes=4, rows=4, stays=True), Stream(bytes=16 * size)),
        )
        for storage, size in (("f32", 4), ("bf16", 2))
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """A line of the table. pace: cycles of the loop alone by those with the caches.

    missing, missing_second: bytes per cycle from behind the first cache, and from behind both.
    """

    title: str
    target: str
    core: str
    features: int
    loads: float
    missing: float
    missing_second: float
    pace: float
    least: float

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.title, self.target, self.core, str(self.features))

    def markdown(self) -> str:
        loads = f"{self.loads:.1f} of {LOADS[self.core]}"
        missing = f"{self.missing:.1f} | {self.missing_second:.1f}"
        return f"| {' | '.join(self.key)} | {loads} | {missing} | {self.pace:.0%} |"


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What bounds an item: bytes of its panels, and of all its rows where a kernel decodes no panels."""

    panels: int
    rows: int


def find_limits(text: str) -> Limits:
    """Return the limits that csrc/product.h has. Raises BuildError where it has none."""
    match = re.search(r"kBlockBytes = (\d+) \* 1024, kRowsBytes = (\d+) \* 1024", text)
    if match is None:
        raise BuildError(f"{PRODUCT.name} has no kBlockBytes and kRowsBytes: were they renamed?")
    return Limits(panels=int(match[1]) * 1024, rows=int(match[2]) * 1024)


def _items(tile: Tile, features: int, limits: Limits) -> list[tuple[range, range]]:
    """Return the tiles and the panels of each item of a prompt's product, as ProductItems cuts it."""
    panels, tiles, wanted = -(-OUTPUTS // tile.columns), -(-PROMPT // tile.loop.rows), 4 * THREADS
    of_panel = (tile.packed or tile.bytes(stays=False)) * features
    block = max(1, min(int(limits.panels // of_panel), -(-panels // wanted)))
    blocks = -(-panels // block)
    rows_bytes = tile.bytes(stays=True) * features * tiles
    for_cache = 1 if tile.packed else int(-(-rows_bytes // limits.rows))
    row_blocks = max(1, min(tiles, max(-(-wanted // blocks), for_cache)))
    each = -(-tiles // row_blocks)
    return [
        (range(first, min(first + each, tiles)), range(panel, min(panel + block, panels)))
        for first in range(0, tiles, each)
        for panel in range(0, panels, block)
    ]


def _parts_read(
    tile: Tile, features: int, block: Block, item: tuple[range, range]
) -> Iterator[tuple[tuple[object, ...], float]]:
    """Yield what an item reads, in its order: a name for each part, and its bytes."""
    rows, panels = item
    of_tile, of_panel = (tile.bytes(stays=stays) for stays in (True, False))
    for panel in panels:
        if tile.packed:
            yield ("packed", panel), tile.packed * features
            yield ("decoded", panel - panels[0]), of_panel * features
    length, together = block.of(features, of_tile * features)
    together = together if length < features else len(panels)
    for row in rows:
        for some in range(panels[0], panels[-1] + 1, together):
            for begin in range(0, features, length):
                part = min(length, features - begin)
                for panel in range(some, min(some + together, panels[-1] + 1)):
                    yield ("rows", row, begin), of_tile * part
                    if tile.packed:
                        yield ("decoded", panel - panels[0]), of_panel * part
                    else:
                        yield ("panel", panel, begin), of_panel * part


def missing_second(tile: Tile, features: int, block: Block, limits: Limits, size: int = SECOND_SIZE) -> float:
    """Return the bytes that a thread reads from behind both caches, per feature, panel and tile.

    The threads of a group of eight take one item after the other.
    """
    items = _items(tile, features, limits)
    held: dict[tuple[object, ...], float] = {}
    missed, read = 0.0, 0
    for turn, item in enumerate(items[::8][:4]):
        for name, part in _parts_read(tile, features, block, item):
            if name in held:
                held[name] = held.pop(name)
                continue
            missed += part if turn else 0
            held[name] = part
            while sum(held.values()) > size:
                del held[next(iter(held))]
        read += len(item[0]) * len(item[1]) if turn else 0
    return missed / (read * features)


def loads_of(body: list[str]) -> int:
    """Return how many registers an iteration loads, each of which takes a load of its own."""
    loads = (parts[1] for line in body if (parts := line.split(maxsplit=1))[0] in LOAD)
    return sum(len(re.findall(r"\b[bhsdqvwx]\d+", operands.partition("[")[0])) for operands in loads)


def measure(
    blocks: dict[str, dict[int, Block]], simulated: Callable[[Loop, Core], tuple[float, int, int]]
) -> list[Line]:
    """Return the table. ``simulated`` gives cycles, marks and loads of an iteration of a loop."""
    lines = []
    limits = find_limits(PRODUCT.read_text(encoding="utf-8"))
    for tile in TILES:
        block = blocks[tile.loop.target].get(tile.bits, Block())
        for core in (core for core in CORES if core.name in tile.loop.cores):
            cycles, marks, loads = simulated(tile.loop, core)
            step = marks * tile.chunk
            for features in FEATURES:
                missing = missing_bytes(tile.streams, features, block)
                second = missing_second(tile, features, block, limits)
                longest = max(cycles, missing * step / CACHE.behind, second * step / SECOND_BEHIND[core.name])
                lines.append(
                    Line(
                        title=tile.title,
                        target=tile.loop.target,
                        core=core.name,
                        features=features,
                        loads=loads / cycles,
                        missing=missing * step / longest,
                        missing_second=second * step / longest,
                        pace=cycles / longest,
                        least=tile.least,
                    )
                )
    return lines


def table(lines: list[Line]) -> str:
    """Return the lines as Markdown."""
    head = [
        "| tile | target | core | features | loads per cycle | from L2 | from behind L2 | pace |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    return "\n".join(head + [line.markdown() for line in lines]) + "\n"


def committed(part: str) -> dict[tuple[str, str, str, str], float]:
    """Return the pace of each line of the part of a page that `table` wrote."""
    result = {}
    for line in part.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[3].isdigit():
            result[cells[0], cells[1], cells[2], cells[3]] = float(cells[7].rstrip("%")) / 100
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
