"""Control flow of A64 code: which instructions every path through a function passes."""

from __future__ import annotations

import bisect
from itertools import accumulate
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt

    from armbuild.audit.elf import Elf
    from armbuild.audit.functions import Functions

_EXIT = -1
_NOP = 0xD503201F
_BRANCHES = 0x14000000
"""Bits 26 to 28 of branches, exceptions, system instructions (Arm ARM, C4.1): all else goes straight on."""
_MAX_FUNCTION = 20_000
_STEPS_PER_FUNCTION = 10
"""What each costs beside its instructions, in theirs."""
_STEPS_PER_BLOCK = 20
"""To find dominators, with those from block to block. Only code that is made to be slow takes more."""


class Places:
    """What lies where: (address, size, what it is). Of those that overlap, the last to begin counts."""

    def __init__(self, parts: Iterable[tuple[int, int, Any]]) -> None:
        self._parts = sorted(parts, key=lambda part: part[0])
        self._starts = [start for start, _, _ in self._parts]
        self._ends = list(accumulate((start + size for start, size, _ in self._parts), max))

    def covers(self, address: int) -> bool:
        """Return whether anything lies at ``address``."""
        index = bisect.bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._ends[index]

    def at(self, address: int) -> tuple[int, Any]:
        """Return how far behind the begin of a part ``address`` is, and the part; None before all."""
        index = bisect.bisect_right(self._starts, address) - 1
        return (address - self._starts[index], self._parts[index][2]) if index >= 0 else (0, None)


class Graph:
    """The code of one file. ``through_got`` tells which function of this file a slot of the GOT leads to.

    ``work`` counts the words that were read, and steps that take as long.
    """

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        elf: Elf,
        known: Functions,
        through_got: Callable[[int], int | None],
    ) -> None:
        self.segments = Places(
            (address, size, data[offset : offset + size // 4 * 4].data.cast("B").cast("I"))
            for address, offset, size in elf.code
        )
        self.starts = known.start.data
        self.through_got = through_got
        self.plt = Places(
            (section.address, section.size, None)
            for section in elf.sections
            if section.name.startswith(".plt")
        )
        self.work = 0

    def on_every_path(self, start: int) -> tuple[list[int], list[int]]:
        """Return the addresses of instructions on every path from ``start`` to a return, and whom they call.

        Paths that end in a trap, or in a call that never comes back (the next function begins behind it), are
        no paths: a process that takes one has other worries.
        """
        blocks, edges = self._blocks(start)
        order, before = _reached(start, edges)
        # Without an exit it is an endless loop, or not understood: its first block runs.
        through = self._dominators(order, before) if _EXIT in before else [start]
        words = [address for block in through for address in blocks[block]]
        return words, [call for address in words if (call := self._callee(address)) is not None]

    def _blocks(self, start: int) -> tuple[dict[int, range], dict[int, tuple[int, ...]]]:
        """Return the basic blocks that ``start`` leads to, by first address, and where each goes on."""
        follows: dict[int, tuple[int, ...]] = {}
        leaders = {start}
        todo = [start]
        while todo and len(follows) < _MAX_FUNCTION:
            address = todo.pop()
            while address not in follows and len(follows) < _MAX_FUNCTION:
                targets = self._follows(address)
                follows[address] = targets
                if targets != (address + 4,):
                    leaders.update(targets)
                    todo.extend(target for target in targets if target != _EXIT)
                    break
                address += 4
            else:
                leaders.add(address)  # runs into what is known already
        self.work += len(follows) + _STEPS_PER_FUNCTION
        blocks, edges = {}, {}
        for leader in leaders & follows.keys():
            end = leader
            while follows[end] == (end + 4,) and end + 4 in follows and end + 4 not in leaders:
                end += 4
            blocks[leader] = range(leader, end + 4, 4)
            # A function too long to be read to its end may return anywhere behind that.
            edges[leader] = tuple(
                target if target == _EXIT or target in follows else _EXIT for target in follows[end]
            )
        return blocks, edges

    def _follows(self, address: int) -> tuple[int, ...]:
        """Return where the instruction at ``address`` goes on: ``_EXIT`` for a return or an unknown place."""
        word = self._word(address)
        behind = address + 4
        if word is not None and word & 0x1C000000 != _BRANCHES and word >> 16:
            return (behind,)
        if word is None or word >> 16 == 0 or word & 0xFFE00000 == 0xD4200000:  # no code, UDF, BRK
            follows: tuple[int, ...] = ()
        elif word & 0xFC000000 == 0x14000000:  # B
            target = address + _signed(word, 0, 26)
            follows = (_EXIT,) if self._in_plt(target) else (target,)
        elif word & 0xFE000000 == 0x54000000 or word & 0x7E000000 == 0x34000000:  # B.cond, CBZ, CBNZ
            follows = (behind, address + _signed(word, 5, 19))
        elif word & 0x7E000000 == 0x36000000:  # TBZ, TBNZ
            follows = (behind, address + _signed(word, 5, 14))
        elif word & 0xFE000000 == 0xD6000000 and word >> 21 & 0x3 != 1:  # BR, RET and their kin, not BLR
            follows = (_EXIT,)
        elif (word >> 26 == 0x25 or word == _NOP) and self._begins_function(behind):  # BL
            follows = ()
        else:
            follows = (behind,)
        return follows

    def _callee(self, address: int) -> int | None:
        word = self._word(address)
        if word is None or word & 0x7C000000 != 0x14000000:  # B, BL
            return None
        target = address + _signed(word, 0, 26)
        if self._in_plt(target):
            return self._through_plt(target)
        return target if word >> 31 else None  # a B's target is part of the same graph

    def _through_plt(self, address: int) -> int | None:
        """Return where a PLT entry (AAELF64: adrp x16; ldr x17, [x16, #n]) leads within this file."""
        for place in (address, address + 4):  # a landing pad may stand before it
            load = self._word(place + 4)
            page = self._page(place, 16)
            if page is not None and load and load & 0xFFC003FF == 0xF9400211:
                return self.through_got(page + (load >> 10 & 0xFFF) * 8)
        return None

    def loaded_address(self, address: int) -> int | None:
        """Return the address of data that the instructions from ``address`` on put into a register, or None.

        That is ADR, ADRP and the ADDs behind it, or ADRP and a load from the GOT.
        """
        word = self._word(address) or 0
        register = word & 0x1F
        if word & 0x9F000000 == 0x10000000:  # ADR
            field = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            return address + ((field ^ 0x100000) - 0x100000)
        value = self._page(address, register)
        while value is not None:
            address += 4
            word = self._word(address) or 0
            if word & 0xFFC003E0 == 0xF9400000 | register << 5:  # LDR from it
                return self.through_got(value + (word >> 10 & 0xFFF) * 8)
            if word & 0xFFC003FF != 0x91000000 | register << 5 | register:  # ADD to it
                break
            value += word >> 10 & 0xFFF
        return value

    def _page(self, address: int, register: int) -> int | None:
        """Return what an ADRP at ``address`` puts into ``register``, None when it is another instruction."""
        word = self._word(address)
        if word is None or word & 0x9F00001F != 0x90000000 | register:
            return None
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        return (address & ~0xFFF) + ((pages ^ 0x100000) - 0x100000) * 4096

    def _in_plt(self, address: int) -> bool:
        return self.plt.covers(address)

    def _begins_function(self, address: int) -> bool:
        index = bisect.bisect_left(self.starts, address)
        return index < len(self.starts) and self.starts[index] == address

    def _word(self, address: int) -> int | None:
        distance, words = self.segments.at(address)
        return words[distance >> 2] if words is not None and distance >> 2 < len(words) else None

    def _dominators(self, order: list[int], before: dict[int, list[int]]) -> list[int]:
        """Return the blocks on every path to the exit, first to last.

        Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm (2001). Of code that is made to be slow,
        the first block alone.
        """
        number = {block: index for index, block in enumerate(order)}
        above: dict[int, int] = {order[0]: order[0]}
        changed = True
        steps, left = 0, _STEPS_PER_BLOCK * len(order)
        while changed:
            changed = False
            left -= len(order)
            for block in order[1:]:
                first, *others = [other for other in before[block] if other in above]
                for other in others:
                    first, more = _meet(first, other, above, number)
                    steps += more
                    if steps > left:
                        self.work += steps
                        return order[:1]
                if above.get(block) != first:
                    above[block] = first
                    changed = True
        self.work += steps
        chain = []
        block = above[_EXIT]
        while block != order[0]:
            chain.append(block)
            block = above[block]
        return [order[0], *reversed(chain)]


def _signed(word: int, shift: int, bits: int) -> int:
    """Return the byte offset of a branch whose field of ``bits`` counts words."""
    field = word >> shift & (1 << bits) - 1
    return ((field ^ 1 << bits - 1) - (1 << bits - 1)) * 4


def _reached(start: int, edges: dict[int, tuple[int, ...]]) -> tuple[list[int], dict[int, list[int]]]:
    """Return the blocks reached from ``start`` in reverse postorder, and the predecessors of each."""
    before: dict[int, list[int]] = {start: []}
    finished: list[int] = []
    stack = [(start, iter(edges.get(start, ())))]
    while stack:
        block, rest = stack[-1]
        for target in rest:
            seen = target in before
            before.setdefault(target, []).append(block)
            if not seen:
                stack.append((target, iter(edges.get(target, ()))))
                break
        else:
            finished.append(block)
            stack.pop()
    return finished[::-1], before


def _meet(one: int, other: int, above: dict[int, int], number: dict[int, int]) -> tuple[int, int]:
    """Return the nearest block that dominates both, and how many steps led to it."""
    steps = 0
    while one != other:
        steps += 1
        if number[one] > number[other]:
            one = above[one]
        else:
            other = above[other]
    return one, steps
