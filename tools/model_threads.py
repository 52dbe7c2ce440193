"""Model what threads cost a decode on many cores: a simulation of cache lines that go from core to core.

    tools/model_threads.py                       8, 64 and 128 threads, a layer of Llama-3-8B with 4 bits
    tools/model_threads.py --transfer-ns 50      another time for a line to come from another core

Two ways are compared. `one counter`: all threads take their items from one counter and end at another, and
each op has regions of its own. `groups`: csrc/threads.cpp. The rules:

- A core that needs a line which another one has written waits for the transfer.
- Updates (read-modify-writes) of one line follow one another. Each is a transfer, unless the same core had
  the line last.
- Reads of a line don't wait for one another. A core has up to eight reads of different lines under way.
- A thread computes items of its share of the memory bandwidth, up to a tenth faster or slower (seeded).
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from dataclasses import dataclass

GROUP_THREADS, MOST_GROUPS = 8, 16  # csrc/threads.cpp
READS_UNDER_WAY = 8
BYTES_PER_NS_AND_CORE = 4.0  # what a core reads of the memory; 64 of them 256 GB/s
# Bytes of the weights of a layer of Llama-3-8B, 4 bits in groups of 32: qkv, o, gate and up, down.
PRODUCTS = tuple(
    rows * columns * 0.5625 for rows, columns in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
)
# Nanoseconds of one core: a row rounded to integers; attention over 1500 tokens, and its sums; an activation.
ROUNDING, ATTENTION, SUMS, ACTIVATION = 1500.0, 100_000.0, 4000.0, 10_000.0


@dataclass(frozen=True)
class Stage:
    """So many items, of so many nanoseconds together."""

    items: int
    nanoseconds: float


class Line:
    """A cache line with a counter: when it is free, and who had it last."""

    def __init__(self, transfer: float) -> None:
        self.transfer, self.free, self.owner, self.updates = transfer, 0.0, -1, 0

    def update(self, core: int, now: float) -> float:
        """When the core has added to it."""
        self.updates += 1
        self.free = max(self.free, now) + (0.0 if self.owner == core else self.transfer)
        self.owner = core
        return self.free


class Layer:
    """Runs the regions of a layer, one after the other; `now` is when the caller goes on."""

    def __init__(self, threads: int, transfer: float, *, grouped: bool) -> None:
        self.threads, self.transfer, self.grouped = threads, transfer, grouped
        self.now, self.updates = 0.0, 0
        self._random = random.Random(0)  # noqa: S311 - the same numbers each time

    def region(self, stages: list[Stage]) -> None:
        """One region of all threads, whose stages follow one another."""
        team = min(self.threads, max(stage.items for stage in stages))
        if team == 1:
            self.now += sum(stage.nanoseconds for stage in stages)
            return
        # Every helper reads the line that says what there is to do.
        times = [self.now] + [self.now + self.transfer] * (team - 1)
        for index, stage in enumerate(stages):
            times, end = self._stage(stage, times)
            if index + 1 < len(stages):
                times = [max(time, end) + self._reads(self._groups(team)) for time in times]
        self.now = self._end(times)

    def _stage(self, stage: Stage, times: list[float]) -> tuple[list[float], float]:
        """When each thread finds nothing more to do, and when the last has said so."""
        team = len(times)
        groups = self._groups(team)
        each = math.ceil(team / groups)
        lines = [Line(self.transfer) for _ in range(groups)]
        left = [stage.items * (g + 1) // groups - stage.items * g // groups for g in range(groups)]
        queue = [(time, core, True) for core, time in enumerate(times)]
        heapq.heapify(queue)
        ends = list(times)
        while queue:
            time, core, is_first = heapq.heappop(queue)
            order = ((core // each + step) % groups for step in range(groups))
            found = next((g for g in order if left[g] > 0), None)
            if found is None:
                # `one counter` learns of the end by an update; `groups` reads the counters.
                ends[core] = time + self._reads(groups) if self.grouped else lines[0].update(core, time)
                continue
            left[found] -= 1
            by_number = self.grouped and is_first and found == core // each
            start = time if by_number else lines[found].update(core, time)
            work = stage.nanoseconds / stage.items * self._random.uniform(0.9, 1.1)
            heapq.heappush(queue, (start + work, core, False))
        done = [Line(self.transfer) for _ in range(groups)]
        for time, core in sorted((time, core) for core, time in enumerate(ends)):
            ends[core] = done[core // each].update(core, time) if self.grouped else time
        self.updates += sum(line.updates for line in lines)
        return ends, max(ends)

    def _end(self, times: list[float]) -> float:
        if self.grouped:  # each helper writes a line of its own, the caller reads them
            return max(times) + self._reads(len(times) - 1)
        line = Line(self.transfer)
        for time, core in sorted((time, core) for core, time in enumerate(times) if core > 0):
            line.update(core, time)
        self.updates += line.updates
        return max(line.free, times[0]) + self.transfer

    def _groups(self, team: int) -> int:
        each = max(GROUP_THREADS, math.ceil(team / MOST_GROUPS))
        return math.ceil(team / each) if self.grouped else 1

    def _reads(self, lines: int) -> float:
        return math.ceil(lines / READS_UNDER_WAY) * self.transfer


def simulate(threads: int, transfer: float, *, grouped: bool) -> tuple[float, float, int]:
    """Nanoseconds of a layer for one sequence, those without waiting, and updates of shared counters."""
    qkv, out, gate_up, down = (Stage(4 * threads, size / BYTES_PER_NS_AND_CORE) for size in PRODUCTS)
    rounding, sums, activation = Stage(1, ROUNDING), Stage(8, SUMS), Stage(4, ACTIVATION)
    attention = Stage(24, ATTENTION)
    regions = [
        [rounding, qkv],
        [attention, sums],
        [rounding, out],
        [rounding, gate_up, activation],
        [rounding, down],
    ]
    if not grouped:
        regions = [[stage] for region in regions for stage in region]
    layer = Layer(threads, transfer, grouped=grouped)
    for region in regions:
        layer.region(region)
    ideal = sum(stage.nanoseconds / min(threads, stage.items) for region in regions for stage in region)
    return layer.now, ideal, layer.updates


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="8,64,128", help="numbers of threads, with commas")
    parser.add_argument(
        "--transfer-ns", type=float, default=100.0, help="a line from another core, nanoseconds"
    )
    options = parser.parse_args()
    print("| threads | way | layer, us | of it waiting, us | updates of shared lines |")
    print("| ---: | --- | ---: | ---: | ---: |")
    for threads in (int(number) for number in options.threads.split(",")):
        for grouped in (False, True):
            total, ideal, updates = simulate(threads, options.transfer_ns, grouped=grouped)
            way = "groups" if grouped else "one counter"
            print(f"| {threads} | {way} | {total / 1000:.0f} | {(total - ideal) / 1000:.0f} | {updates} |")


if __name__ == "__main__":
    main()
