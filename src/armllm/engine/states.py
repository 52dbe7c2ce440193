"""Which slot of the recurrent states belongs to whom.

A running sequence owns one slot. The others hold snapshots: the state after a prefix that ends at the border
of a block, by the id of that prefix in the block manager. The least recently used snapshot goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from armllm.engine.sequence import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.sequence import Sequence


class StateSlots:
    """``num_slots`` slots, and the copies between them that the next step needs first, in order.

    A copy is (source, target); without a source the target is cleared.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._snapshots: OrderedDict[int, int] = OrderedDict()  # prefix id -> slot
        self._copies: list[tuple[int | None, int]] = []

    @property
    def available(self) -> bool:
        """Whether a sequence can have a slot."""
        return bool(self._free or self._snapshots)

    def has(self, prefix: int) -> bool:
        """Whether the state after this prefix is here."""
        return prefix in self._snapshots

    def start(self, sequence: Sequence, prefix: int | None = None) -> None:
        """Give a sequence a slot with the state after a prefix, or before the first token."""
        source = None
        if prefix is not None:
            source = self._snapshots[prefix]
            self._snapshots.move_to_end(prefix)
        sequence.state_slot = self._take()
        if source != sequence.state_slot:  # else it was the only snapshot, and the sequence has it now
            self._copies.append((source, sequence.state_slot))

    def keep(self, sequence: Sequence, prefix: int) -> None:
        """Remember a sequence's state, which is that after this prefix, if there is room."""
        if prefix in self._snapshots:
            self._snapshots.move_to_end(prefix)
        elif self.available:
            self._snapshots[prefix] = slot = self._take()
            self._copies.append((sequence.state_slot, slot))

    def drop(self, prefix: int) -> None:
        """Forget the state after a prefix, if it is here."""
        slot = self._snapshots.pop(prefix, None)
        if slot is not None:
            self._free.append(slot)

    def release(self, sequence: Sequence) -> None:
        """Take back a sequence's slot."""
        if sequence.state_slot != NO_SLOT:
            self._free.append(sequence.state_slot)
            sequence.state_slot = NO_SLOT

    def forget(self) -> None:
        """Drop all snapshots."""
        self._free += self._snapshots.values()
        self._snapshots.clear()

    def take_copies(self) -> list[tuple[int | None, int]]:
        """What is to be copied before the next step."""
        copies, self._copies = self._copies, []
        return copies

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless every slot is free, a snapshot's or one sequence's."""
        owned = [sequence.state_slot for sequence in sequences if sequence.state_slot != NO_SLOT]
        if sorted([*self._free, *self._snapshots.values(), *owned]) != list(range(self.num_slots)):
            raise AssertionError("the slots of states do not match the sequences and snapshots")

    def _take(self) -> int:
        return self._free.pop() if self._free else self._snapshots.popitem(last=False)[1]
