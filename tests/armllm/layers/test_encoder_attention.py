"""Attention of encoders beside torch's."""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from armllm.layers.encoder_attention import EncoderAttention

BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def by_torch(parts, starts, reach):
    """One sequence after the other, in float64."""
    out = torch.empty(parts[0].shape, dtype=torch.float64)
    for start, end in itertools.pairwise(starts.tolist()):
        q, k, v = (part[start:end].double().transpose(0, 1) for part in parts)
        distance = (torch.arange(end - start)[:, None] - torch.arange(end - start)).abs()
        seen = distance <= (end if reach is None else reach)
        out[start:end] = scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1)
    return out


def inputs(lengths, heads, head_dim, dtype):
    """Query, key and value as parts of one product, and where the sequences begin."""
    starts = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
    wide = torch.randn(int(starts[-1]), 3 * heads * head_dim).to(dtype)
    return [part.view(-1, heads, head_dim) for part in wide.chunk(3, dim=-1)], starts


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("reach", "head_dim"), [(None, 32), (None, 12), (3, 32), (0, 20), (700, 8)])
def test_every_token_sees_its_sequence_or_what_it_reaches(dtype, reach, head_dim):
    attention = EncoderAttention(num_heads=3, head_dim=head_dim, reach=reach)
    parts, starts = inputs([17, 1, 600, 16, 17], 3, head_dim, dtype)
    found = attention(*parts, starts)
    torch.testing.assert_close(found.double(), by_torch(parts, starts, reach), rtol=0, atol=BOUNDS[dtype])


def test_calls_with_other_sequences_types_and_layers_in_turn():
    """They share the kernels' scratch memory."""
    narrow, wide = (EncoderAttention(num_heads=2, head_dim=size) for size in (16, 64))
    for attention, lengths, dtype in (
        (narrow, [5, 9], torch.float32),
        (wide, [5, 9], torch.float32),
        (narrow, [200], torch.bfloat16),
        (narrow, [9, 5], torch.float32),
    ):
        parts, starts = inputs(lengths, 2, attention.head_dim, dtype)
        for _ in range(2):
            found = attention(*parts, starts)
            expected = by_torch(parts, starts, None)
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=BOUNDS[dtype])


def test_threads_do_not_share_scratch_memory():
    attention = EncoderAttention(num_heads=2, head_dim=32)
    wrong = []

    def work(seed):
        parts, starts = inputs([seed + 1, 40 - seed], 2, 32, torch.float32)
        for _ in range(20):
            found = attention(*parts, starts).double()
            if not torch.allclose(found, by_torch(parts, starts, None), rtol=0, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
