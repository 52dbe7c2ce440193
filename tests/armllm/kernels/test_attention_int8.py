"""Attention on an int8 KV cache against plain torch, its accuracy, and what its face must refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.armllm.kernels.test_attention import ANY_OPTIONS

from armllm import kernels
from armllm.kernels import reference

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def attend(ops, dtype, lengths, queries, *, cache_dtype=torch.int8, poison=None, **shape):
    """The output for random queries, keys and values, of which token ``poison`` of sequence 0 holds a NaN."""
    kv_heads, group, head_dim = shape.get("kv_heads", 2), shape.get("group", 2), shape.get("head_dim", 32)
    block_size, options = shape.get("block_size", 16), shape.get("options", {})
    generator = torch.Generator().manual_seed(shape.get("seed", 0))
    layout = ops.kv_cache_layout(
        dtype, num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, cache_dtype=cache_dtype
    )
    counts = [-(-length // block_size) for length in lengths]
    cache = ops.allocate_kv_cache(layout, sum(counts) + 1)
    cache.fill_(0xFF)  # scales that no token wrote are NaN
    free = (torch.randperm(sum(counts), generator=generator) + 1).split(counts)
    tables = torch.full((len(lengths), max(counts)), -7, dtype=torch.int32)
    for s, (length, blocks) in enumerate(zip(lengths, free, strict=True)):
        tables[s, : len(blocks)] = blocks
        token = torch.arange(length)
        slots = blocks[token // block_size] * block_size + token % block_size
        key, value = torch.randn(2, length, kv_heads, head_dim, generator=generator).to(dtype)
        if s == 0 and poison is not None:
            key[poison, :, 3] = torch.nan
            value[poison, :, 5] = torch.inf
        ops.write_kv_cache(key, value, cache, layout, slots)
    query = torch.randn(sum(queries), kv_heads * group, head_dim, generator=generator).to(dtype)
    options = {
        name: torch.rand(kv_heads * group, generator=generator) if value is True else value
        for name, value in options.items()
    }
    out = torch.full_like(query, torch.nan)
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    ops.paged_attention(out, query, cache, layout, tables, starts, seq_lens, head_dim**-0.5, **options)
    return out.double()


def check(dtype, lengths, queries, **shape):
    got, want = (attend(ops, dtype, lengths, queries, **shape) for ops in (kernels, reference))
    # Weights are off by 2^-15 of the largest, of which a chunk has 64; the result is rounded once.
    bound = (2**-9 + torch.finfo(dtype).eps) * max(1.0, want.abs().max().item())
    torch.testing.assert_close(got, want, rtol=0, atol=bound)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_batch_matches_plain_torch(data):
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=4))
    check(
        data.draw(st.sampled_from(DTYPES)),
        lengths,
        [data.draw(st.integers(1, length)) for length in lengths],
        kv_heads=data.draw(st.integers(1, 3)),
        group=data.draw(st.integers(1, 9)),
        head_dim=8 * data.draw(st.integers(1, 20)),
        block_size=data.draw(st.sampled_from([16, 32, 64, 128])),
        seed=data.draw(st.integers(0, 2**31)),
        options=data.draw(ANY_OPTIONS),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_contexts_longer_than_one_split(dtype):
    check(dtype, [1600, 511, 512, 513, 1025], [1, 2, 1, 70, 1], block_size=32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_costs_little(dtype):
    """Normal numbers: about a percent, as rounding three operands to 8 bits does."""
    rounded, exact = (
        attend(kernels, dtype, [600, 40], [9, 40], head_dim=64, cache_dtype=cache_dtype)
        for cache_dtype in (torch.int8, None)
    )
    error = (rounded - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert 1e-4 < error < 0.02


def test_a_key_or_value_that_is_no_number_spoils_only_what_sees_it():
    out = attend(kernels, torch.float32, [40, 30], [10, 30], poison=35)
    clean = attend(kernels, torch.float32, [40, 30], [10, 30])
    assert torch.equal(out[:5], clean[:5])  # positions 30 to 34
    assert out[5:10].isnan().all()
    assert torch.equal(out[10:], clean[10:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("head_dim", "block_size"), [(8, 16), (64, 32), (128, 128)])
def test_its_blocks_hold_bytes_and_scales(dtype, head_dim, block_size):
    layout = kernels.kv_cache_layout(
        dtype, num_kv_heads=3, head_dim=head_dim, block_size=block_size, cache_dtype=torch.int8
    )
    assert layout.block_bytes == 2 * 3 * block_size * (head_dim + 4)
    assert (layout.dtype, layout.cache_dtype) == (dtype, torch.int8)


@pytest.mark.parametrize("cache_dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_a_cache_of_another_dtype_is_refused_by_name(cache_dtype):
    with pytest.raises(
        ValueError, match=f"^cache_dtype is {cache_dtype}; keys and values of torch.float32 are"
    ):
        kernels.kv_cache_layout(
            torch.float32, num_kv_heads=2, head_dim=64, block_size=16, cache_dtype=cache_dtype
        )


def test_a_cache_of_one_kind_is_not_taken_for_the_other():
    shape = {"num_kv_heads": 2, "head_dim": 64, "block_size": 16}
    plain = kernels.kv_cache_layout(torch.float32, **shape)
    rounded = kernels.kv_cache_layout(torch.float32, **shape, cache_dtype=torch.int8)
    cache = kernels.allocate_kv_cache(rounded, 2)
    both, slots = torch.ones(1, 2, 64), torch.tensor([0])
    with pytest.raises(ValueError, match=r"^cache has shape"):
        kernels.write_kv_cache(both, both, cache, plain, slots)
    with pytest.raises(ValueError, match=r"^layout was made for"):
        kernels.write_kv_cache(both, both, cache, replace(plain, cache_dtype=torch.int8), slots)
