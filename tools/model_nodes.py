#!/usr/bin/env python3
"""Model on paper what the nodes of a large Arm machine give: tokens per second of a decode.

    tools/model_nodes.py                    Llama-3-8B with 8 bits, contexts of 1024 tokens in bf16
    tools/model_nodes.py --gather-us 20     with slower gathers

Nobody measured these machines. A node reads its weights and keys, or multiplies, whichever takes longer. Then

- one node, or a replica on each: threads wait for each other in each layer; no messages.
- ranks (tensor parallel): each node has its share of both. A layer has four gathers.
- stages (pipeline parallel): each node has its share of the layers; sequences are divided among the steps.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

PARAMETERS, LAYERS, HIDDEN, MIDDLE = 8.03e9, 32, 4096, 14336  # Llama-3-8B, a byte each
KEY_BYTES = 2 * 8 * 128 * 2 * LAYERS  # of a token: keys and values of 8 heads of width 128 in bf16
CONTEXT = 1024
READS = 0.8  # of the memory's peak that a node reaches
WAITING = 33e-6  # seconds of a layer: tools/model_threads.py for 128 cores


@dataclass(frozen=True)
class Machine:
    """A machine of two nodes. memory: peak bytes per second of a node; link: from one node to the other.

    macs: multiply-accumulates per cycle and core of an int8 product with 16 rows (tools/cycles.py).
    """

    name: str
    cores: int
    hertz: float
    memory: float
    link: float
    macs: float

    def step(self, sequences: int, share: float = 1) -> float:
        """Seconds in which a node reads or multiplies its share of a step."""
        read = (PARAMETERS + sequences * CONTEXT * KEY_BYTES) / (READS * self.memory)
        multiplied = PARAMETERS * sequences / (self.cores * self.hertz * self.macs)
        return max(read, multiplied) * share


MACHINES = (
    # 8 channels of DDR4-3200; 2 CCIX links of 16 lanes at 25 GT/s
    Machine("Ampere Altra, 2 x 80", 80, 3.0e9, 204.8e9, 100e9, 32.0),
    # 12 channels of DDR5-5600; nothing is published about the link: that of Altra
    Machine("Graviton4 48xlarge, 2 x 96", 96, 2.8e9, 537.6e9, 100e9, 128.0),
    # LPDDR5X; NVLink-C2C of 900 GB/s in both directions together
    Machine("Grace Superchip, 2 x 72", 72, 3.1e9, 500e9, 450e9, 128.0),
)


def rates(machine: Machine, sequences: int, gather: float) -> dict[str, float]:
    """Tokens per second by what the second node is used for."""
    waiting = LAYERS * WAITING
    half = max(1, sequences // 2)
    columns = 3 * HIDDEN + MIDDLE  # that the gathers of a layer bring together
    gathers = LAYERS * (4 * gather + columns * sequences / 2 * 2 / machine.link)
    whole = machine.step(sequences) + waiting
    of_half = machine.step(half) + waiting
    ranks = machine.step(sequences, 1 / 2) + waiting + gathers
    both = 2 if sequences > 1 else 1  # nodes that have something to do
    return {
        "one node": sequences / whole,
        "2 ranks": sequences / ranks,
        "2 stages or replicas": both * half / of_half,
        "gathers": gathers / ranks,
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gather-us", type=float, default=5.0, help="microseconds of a gather of one row")
    arguments = parser.parse_args()
    print("| machine | sequences | one node | 2 ranks | 2 stages, or 2 replicas | within gathers |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for machine in MACHINES:
        for sequences in (1, 32, 256):
            found = rates(machine, sequences, arguments.gather_us * 1e-6)
            share = found.pop("gathers")
            cells = " | ".join(f"{one:.0f}" for one in found.values())
            print(f"| {machine.name} | {sequences} | {cells} | {share:.1%} |")


if __name__ == "__main__":
    main()
