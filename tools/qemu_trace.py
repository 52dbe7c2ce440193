"""What QEMU executed, instruction by instruction, from its log of translated and of executed blocks.

``qemu-aarch64 -d in_asm,exec,nochain`` writes each block of instructions when it translates it, and a line
whenever it runs one: both together count instructions exactly, without a plugin. Debian's QEMU
disassembles by itself.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

LOG = "in_asm,exec,nochain"
INSTRUCTION = re.compile(rb"0x([0-9a-f]+):\s+[0-9a-f]{8}\s+(.*?)\s*$")
EXECUTED = re.compile(rb"Trace \d+: (0x[0-9a-f]+) \[[0-9a-f]+/([0-9a-f]+)/\S+\] ?(\S*)")
BRANCH = re.compile(r"(?:b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?#0x([0-9a-f]+)$")


@dataclasses.dataclass
class Trace:
    """How often each address was executed, what is there, and the function that it belongs to."""

    times: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    text: dict[int, str] = dataclasses.field(default_factory=dict)
    function: dict[int, str] = dataclasses.field(default_factory=dict)

    def loop_around(self, address: int) -> tuple[int, int] | None:
        """Return first and last address of the innermost loop around an address, None without one."""
        around = [
            (last - first, first, last)
            for last, text in self.text.items()
            if last >= address and (found := BRANCH.match(text)) and (first := int(found[1], 16)) <= address
        ]
        return min(around)[1:] if around else None


class _Blocks:
    """The blocks that QEMU has translated so far."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        # by where QEMU keeps its code for an address
        self.translated: dict[tuple[bytes, int], list[int]] = {}
        self.fresh: dict[int, list[int]] = {}  # by address: translated, but not run yet
        self.current: list[int] = []

    def translate(self, line: bytes) -> None:
        """Take a line of the log that tells of no run."""
        if line.startswith(b"IN:"):
            self.current = []
        elif found := INSTRUCTION.match(line):
            address = int(found[1], 16)
            if not self.current:
                self.fresh[address] = self.current
            self.current.append(address)
            self.trace.text[address] = found[2].decode()

    def run(self, line: bytes) -> tuple[str, list[int]]:
        """Return the function and the addresses of the block that a line says was run."""
        found = EXECUTED.match(line)
        if found is None:
            raise ValueError(f"not a line of QEMU 10: {line!r}")
        key = found[1], int(found[2], 16)
        if key[1] in self.fresh:
            self.translated[key] = self.fresh.pop(key[1])
        if key not in self.translated:
            raise ValueError(f"{key[1]:#x} was run before it was translated")
        return found[3].decode(), self.translated[key]


def read(lines: Iterable[bytes], begin: str, end: str) -> Trace:
    """Count what was executed after the block of function ``begin`` and before that of ``end``.

    Raises ValueError for a block that was run but not translated, or when one of the two never ran.
    """
    trace = Trace()
    blocks = _Blocks(trace)
    counts: dict[bytes, int] = {}
    counting = False
    for line in lines:
        if line in counts:
            counts[line] += 1
        elif not line.startswith(b"Trace"):
            blocks.translate(line)
        else:
            function, _ = blocks.run(line)
            if counting and function == end:
                break
            if counting:
                counts[line] = 1
            counting = counting or function == begin
    else:
        raise ValueError(f"{end} did not run after {begin}")
    for line, times in counts.items():
        function, addresses = blocks.run(line)
        for address in addresses:
            trace.times[address] += times
            trace.function[address] = function
    return trace


def merged(loops: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return loops sorted, each once, those within others left out."""
    result: list[tuple[int, int]] = []
    for first, last in sorted(set(loops), key=lambda loop: (loop[0], -loop[1])):
        if not result or last > result[-1][1]:
            result.append((first, last))
    return result


def within(address: int, loops: list[tuple[int, int]]) -> bool:
    """Return whether an address is in one of the merged loops."""
    at = bisect.bisect_right(loops, (address, 1 << 64)) - 1
    return at >= 0 and address <= loops[at][1]
