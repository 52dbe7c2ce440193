"""What one step says of its sequences."""

from __future__ import annotations

import pytest
import torch

from armllm.layers.attention import AttentionMetadata


def metadata(*lengths):
    """Of sequences: tokens in the step, and in the cache after it."""
    rows = [rows for rows, _ in lengths]
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    return AttentionMetadata(
        slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
        block_tables=torch.zeros(len(rows), 1, dtype=torch.int32),
        query_start_loc=starts,
        seq_lens=torch.tensor([total for _, total in lengths], dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("lengths", "first", "starts"),
    [
        ([(3, 3), (2, 2)], 0, [0, 3, 5]),
        ([(1, 9), (3, 3), (2, 2)], 1, [1, 4, 6]),
        ([(3, 3), (1, 9), (2, 2)], 2, [4, 6]),
        ([(3, 3), (2, 9)], 2, None),
        ([(1, 9), (1, 1)], 2, None),
        ([(1, 9), (1, 1), (2, 2)], 1, [1, 2, 4]),
    ],
)
def test_new_sequences_are_those_at_the_end(lengths, first, starts):
    found = metadata(*lengths).new_sequences
    assert (found is None) == (starts is None)
    if found is not None:
        before, rows = found
        assert (rows + starts[0]).tolist() == starts
        assert before.query_start_loc.tolist()[-1] == starts[0]
        assert len(before.query_start_loc) == first + 1
        assert before.seq_lens.tolist() == [total for _, total in lengths[:first]]
        assert len(before.slot_mapping) == starts[0]
        assert len(before.block_tables) == first
