"""Which block of the KV cache belongs to whom.

A full block is known by what it holds: the key (prefix before it, its tokens). The first block registered
under a key gets a fresh *prefix id*, which is the "prefix before it" of the next block. A dict over these
keys is a chain of hashes whose hits are always compared token by token, so two prompts never share a block by
accident. The tokens of all pictures are the same: a hash of what is to be seen is part of the key.

Blocks nobody refers to stay in the dict until they are needed for something else, least recently used first
and the end of a prompt before its beginning.
"""

from __future__ import annotations

import array
from collections import OrderedDict
from typing import TYPE_CHECKING

from armllm.engine.sequence import NO_SLOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.sequence import Sequence
    from armllm.engine.states import StateSlots

# Before a sequence's first token. One whose rotary frequencies are those for long ones has other keys, and so
# has one with a LoRA adapter: -2 and -3 with the first, and so on.
NO_PREFIX = 0
NO_PREFIX_LONG = -1
Key = tuple[int, tuple[int, ...]]


class BlockManager:
    """Reference counts and prefix cache of ``num_blocks`` blocks of ``block_size`` tokens.

    ``switch_length``: longer sequences have other keys from their first token on (`ModelConfig`), which the
    prefix cache keeps apart. ``states``: of a model with recurrent layers. Its sequences share a prefix up to
    a border where a snapshot of the state was taken: at the last border of each prompt, and where prompts
    were seen to part (Pan et al. 2024, arXiv:2411.19379).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        switch_length: int | None = None,
        states: StateSlots | None = None,
    ) -> None:
        self.switch_length = switch_length
        self.states = states
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.ref_counts = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._cached: dict[Key, tuple[int, int]] = {}  # -> (block, its prefix id)
        self._keys: dict[int, Key] = {}  # block -> the key it is cached under
        self._next_prefix_id = NO_PREFIX + 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, those that only the prefix cache remembers included."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    def can_grow(self, sequence: Sequence, num_tokens: int, promised: int = 0) -> bool:
        """Whether the sequence's table can be made long enough for its first ``num_tokens`` tokens.

        ``promised``: blocks that others will take before it.
        """
        if self.states is not None and sequence.state_slot == NO_SLOT and not self.states.available:
            return False
        return self.missing(sequence, num_tokens) <= len(self._free) - promised

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that a table lacks for this many tokens."""
        return self.blocks_for(num_tokens) - len(sequence.block_table)

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence the blocks for its first ``num_tokens`` tokens, which this step will compute.

        Blocks that get full are put into the prefix cache at once: every layer writes a step's keys and
        values before it reads any, so a sequence that joins in the same step may share them.
        """
        if self.states is not None and sequence.state_slot == NO_SLOT:
            self.states.start(sequence)
        for _ in range(self.missing(sequence, num_tokens)):
            sequence.block_table.append(self._take())
        if self.enable_prefix_caching:
            for index in range(len(sequence.prefix_ids), num_tokens // self.block_size):
                self._register(sequence, index)

    def share_prefix(self, sequence: Sequence) -> int:
        """Point an empty sequence at the cached blocks of its prefix; return how many tokens they hold.

        At least one token is left to compute, since its logits are wanted.
        """
        if not self.enable_prefix_caching:
            return 0
        for block, prefix in self._find_prefix(sequence):
            if self.ref_counts[block] == 0:
                del self._free[block]
            self.ref_counts[block] += 1
            sequence.block_table.append(block)
            sequence.prefix_ids.append(prefix)
        if self.states is not None and sequence.prefix_ids:
            self.states.start(sequence, sequence.prefix_ids[-1])
        return len(sequence.block_table) * self.block_size

    def waits_for_state(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether one that runs is about to take a snapshot of all that this empty sequence could share."""
        if self.states is None or not self.enable_prefix_caching:
            return False
        found = self._find_blocks(sequence)
        if not found or self.states.has(found[-1][1]):
            return False
        end = len(found) * self.block_size
        return any(
            other.num_computed_tokens < end
            and end in (other.parting, self._last_border(other))
            and other.prefix_ids[len(found) - 1 : len(found)] == [found[-1][1]]
            for other in running
        )

    def chunk(self, sequence: Sequence, budget: int) -> int:
        """How many tokens a step computes of a sequence; up to a border where a snapshot is wanted."""
        first = sequence.num_computed_tokens
        end = min(sequence.num_tokens, first + budget)
        if self.states is not None and self.enable_prefix_caching:
            last = self._last_border(sequence)
            borders = (sequence.parting, last, end // self.block_size * self.block_size if end < last else 0)
            end = min((border for border in borders if first < border < end), default=end)
        return end - first

    def keep_states(self, running: list[Sequence]) -> None:
        """Take snapshots of the states of running sequences that end a block of their prompts."""
        if self.states is None:
            return
        for sequence in running:
            count, rest = divmod(sequence.num_computed_tokens, self.block_size)
            of_prompt = 0 < sequence.num_computed_tokens < sequence.num_prompt_tokens
            in_step = bool(sequence.num_scheduled_tokens)  # which has another state
            if of_prompt and not rest and not in_step and count <= len(sequence.prefix_ids):
                self.states.keep(sequence, sequence.prefix_ids[count - 1])

    def release(self, sequence: Sequence) -> None:
        """Take back all blocks of a sequence, its last ones to be reused first."""
        for block in reversed(sequence.block_table):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self._free[block] = None
                if block not in self._keys:  # holds nothing worth keeping
                    self._free.move_to_end(block, last=False)
        sequence.block_table = array.array("i")
        sequence.prefix_ids.clear()
        if self.states is not None:
            self.states.release(sequence)

    def forget(self) -> None:
        """Empty the prefix cache."""
        self._cached.clear()
        self._keys.clear()
        if self.states is not None:
            self.states.forget()

    def check_integrity(self, sequences: Iterable[Sequence] = ()) -> None:
        """Raise AssertionError unless counts, free list, cache and these block tables agree."""
        counts = [0] * self.num_blocks
        for sequence in sequences:
            for block in sequence.block_table:
                counts[block] += 1
        if counts != self.ref_counts:
            wrong = [block for block in range(self.num_blocks) if counts[block] != self.ref_counts[block]]
            raise AssertionError(f"reference counts of blocks {wrong} do not match the block tables")
        if set(self._free) != {block for block, count in enumerate(counts) if count == 0}:
            raise AssertionError("the free list is not the set of blocks without a reference")
        if {block: key for key, (block, _) in self._cached.items()} != self._keys:
            raise AssertionError("the prefix cache and the blocks' keys disagree")
        if self.states is not None:
            self.states.check_integrity(sequences)

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._keys.pop(block, None)
        if key is not None:
            _, prefix = self._cached.pop(key)
            if self.states is not None:
                self.states.drop(prefix)
        self.ref_counts[block] = 1
        return block

    def _register(self, sequence: Sequence, index: int) -> None:
        key = self._key(sequence, index, sequence.prefix_ids[-1] if index else self._root(sequence))
        hit = self._cached.get(key)
        if hit is None:
            hit = sequence.block_table[index], self._next_prefix_id
            self._next_prefix_id += 1
            self._cached[key] = hit
            self._keys[hit[0]] = key
        sequence.prefix_ids.append(hit[1])

    def _find_prefix(self, sequence: Sequence) -> list[tuple[int, int]]:
        """The cached blocks that an empty sequence may share, and notes where it leaves what is known."""
        found = self._find_blocks(sequence)
        if self.states is not None:
            sequence.parting = len(found) * self.block_size
            while found and not self.states.has(found[-1][1]):
                found.pop()
        return found

    def _find_blocks(self, sequence: Sequence) -> list[tuple[int, int]]:
        """The cached blocks of a sequence's prefix, each with its prefix id."""
        found: list[tuple[int, int]] = []
        prefix = self._root(sequence)
        for index in range((sequence.num_tokens - 1) // self.block_size):
            hit = self._cached.get(self._key(sequence, index, prefix))
            if hit is None:
                break
            found.append(hit)
            prefix = hit[1]
        return found

    def _last_border(self, sequence: Sequence) -> int:
        """The last border of a prompt; at least one token follows it."""
        return (sequence.num_prompt_tokens - 1) // self.block_size * self.block_size

    def _root(self, sequence: Sequence) -> int:
        long = self.switch_length is not None and sequence.num_tokens > self.switch_length
        adapter = 0 if sequence.adapter is None else sequence.adapter.number
        return (NO_PREFIX_LONG if long else NO_PREFIX) - 2 * adapter

    def _key(self, sequence: Sequence, index: int, prefix: int) -> Key:
        start = index * self.block_size
        end = start + self.block_size
        tokens = tuple(sequence.token_ids[start:end])
        if sequence.pictures is None:
            return prefix, tokens
        return prefix, tokens + tuple(one.digest for one in sequence.pictures.within(start, end))
