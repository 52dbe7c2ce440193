"""The inputs of recorded decode steps, which lie in fixed places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.layers.attention import AttentionMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    from armllm.engine.messages import Message
    from armllm.engine.runner import StepInput
    from armllm.engine.sequence import Sequence


DECODE = "decode"  # in a message to other ranks: the numbers of each sequence


class DecodeStep:
    """The inputs of a step of ``size`` sequences, one token each: the first rows of the fixed places."""

    def __init__(self, inputs: DecodeInputs, size: int) -> None:
        self.token_ids = inputs.token_ids[:size]
        self.positions = inputs.positions[:size]
        self.total_lens = inputs.total_lens[:size]
        self.places = inputs.places[:size]
        self.metadata = AttentionMetadata(
            slot_mapping=inputs.slot_mapping[:size],
            block_tables=inputs.block_tables[:size],
            query_start_loc=inputs.query_start_loc[: size + 1],
            seq_lens=inputs.seq_lens[:size],
        )
        self.adapter_slots = inputs.adapter_slots[:size]


class DecodeInputs:
    """Fixed places for the inputs of all recordings."""

    def __init__(self, most: int, max_blocks: int) -> None:
        self._rows = torch.zeros(5, most, dtype=torch.int64)
        self.token_ids, self.positions, self.total_lens, self.slot_mapping, self.adapter_slots = self._rows
        self.places = torch.zeros(most, dtype=torch.int64)
        self.seq_lens = torch.zeros(most, dtype=torch.int32)
        self.query_start_loc = torch.arange(most + 1, dtype=torch.int32)
        self.block_tables = torch.zeros(most, max_blocks, dtype=torch.int32)
        self._numbers = (self.token_ids.numpy(), self.positions.numpy(), self.slot_mapping.numpy())
        self._lens = (self.total_lens.numpy(), self.seq_lens.numpy())
        self._tables = self.block_tables.numpy()
        self._width = 0  # of the longest table of the step

    def fill(self, sequences: Sequences[Sequence], block_size: int) -> None:
        """Describe the last token of each sequence."""
        size = len(sequences)
        token_ids, positions, slot_mapping = self._numbers
        last = [sequence.num_computed_tokens for sequence in sequences]
        positions[:size] = last
        token_ids[:size] = [sequence.token_ids[-1] for sequence in sequences]
        slot_mapping[:size] = [
            sequence.block_table[position // block_size] * block_size + position % block_size
            for sequence, position in zip(sequences, last, strict=True)
        ]
        for lens in self._lens:
            lens[:size] = positions[:size]
            lens[:size] += 1
        for row, sequence in enumerate(sequences):
            if sequence.pictures is not None:
                positions[row] += sequence.pictures.shift
        for row, sequence in enumerate(sequences):
            self._tables[row, : len(sequence.block_table)] = sequence.block_table
        self._width = max(len(sequence.block_table) for sequence in sequences)

    def copy(self, x: StepInput) -> None:
        """Describe a step of one token for each sequence."""
        metadata, size = x.metadata, len(x.token_ids)
        values = (x.token_ids, x.positions, metadata.slot_mapping, x.total_lens, metadata.seq_lens)
        for place, value in zip((*self._numbers, *self._lens), values, strict=True):
            place[:size] = value.numpy()
        tables = metadata.block_tables.numpy()
        self._tables[:size, : tables.shape[1]] = tables

    def message(self, size: int) -> Message:
        """The step of ``size`` sequences that was filled in, for `read` in another process."""
        return {DECODE: self._rows[:, :size], "block_tables": self.block_tables[:size, : self._width]}

    def read(self, message: Message) -> int:
        """Describe what `message` wrote; how many sequences it has."""
        rows, tables = message[DECODE], message["block_tables"]
        size = rows.shape[1]
        self._rows[:, :size] = rows
        self.seq_lens[:size] = self.total_lens[:size]
        self.block_tables[:size, : tables.shape[1]] = tables
        return int(size)
