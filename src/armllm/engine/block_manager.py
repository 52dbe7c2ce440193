"""Which block of the KV cache belongs to whom.

A full block is known by what it holds: the key (prefix before it, its tokens). The first block registered
under a key gets a fresh *prefix id*, which is the "prefix before it" of the next block. A dict over these
keys is a chain of hashes whose hits are always compared token by token, so two prompts never share a block by
accident.

Blocks nobody refers to stay in the dict until they are needed for something else, least recently used first
and the end of a prompt before its beginning.
"""

from __future__ import annotations

import array
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.sequence import Sequence

# Before a sequence's first token. One whose rotary frequencies are those for long ones has other keys, and so
# has one with a LoRA adapter: -2 and -3 with the first, and so on.
NO_PREFIX = 0
NO_PREFIX_LONG = -1
Key = tuple[int, tuple[int, ...]]


class BlockManager:
    """Reference counts and prefix cache of ``num_blocks`` blocks of ``block_size`` tokens.

    ``switch_length``: longer sequences have other keys from their first token on (`ModelConfig`), which the
    prefix cache keeps apart.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        switch_length: int | None = None,
    ) -> None:
        self.switch_length = switch_length
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

    def can_grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the sequence's table can be made long enough for its first ``num_tokens`` tokens."""
        return self.blocks_for(num_tokens) - len(sequence.block_table) <= len(self._free)

    def grow(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence the blocks for its first ``num_tokens`` tokens, which this step will compute.

        Blocks that get full are put into the prefix cache at once: every layer writes a step's keys and
        values before it reads any, so a sequence that joins in the same step may share them.
        """
        for _ in range(self.blocks_for(num_tokens) - len(sequence.block_table)):
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
        prefix = self._root(sequence)
        for index in range((sequence.num_tokens - 1) // self.block_size):
            hit = self._cached.get(self._key(sequence, index, prefix))
            if hit is None:
                break
            block, prefix = hit
            if self.ref_counts[block] == 0:
                del self._free[block]
            self.ref_counts[block] += 1
            sequence.block_table.append(block)
            sequence.prefix_ids.append(prefix)
        return len(sequence.block_table) * self.block_size

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

    def forget(self) -> None:
        """Empty the prefix cache."""
        self._cached.clear()
        self._keys.clear()

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

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        key = self._keys.pop(block, None)
        if key is not None:
            del self._cached[key]
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

    def _root(self, sequence: Sequence) -> int:
        long = self.switch_length is not None and sequence.num_tokens > self.switch_length
        adapter = 0 if sequence.adapter is None else sequence.adapter.number
        return (NO_PREFIX_LONG if long else NO_PREFIX) - 2 * adapter

    def _key(self, sequence: Sequence, index: int, prefix: int) -> Key:
        start = index * self.block_size
        return prefix, tuple(sequence.token_ids[start : start + self.block_size])
